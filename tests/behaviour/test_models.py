"""Architectures of transformers, diffusers and timm: built as fakes they have what meta gives.

Construction at each library's default configuration is compared with ``torch.device("meta")``,
forward and backward of small configurations with eager.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import all_fake, describe, generators_stand_still
from torchfake import fake_like, fake_mode

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
transformers = pytest.importorskip("transformers")

TEXT = (
    "albert bart bert big_bird bigbird_pegasus biogpt blenderbot bloom camembert canine codegen "
    "cohere convbert ctrl deberta deberta-v2 distilbert electra ernie falcon fnet roc_bert gemma "
    "gemma2 gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite ibert led llama longformer longt5 luke "
    "m2m_100 mbart mobilebert modernbert mpnet mpt mt5 mvp nystromformer olmo opt perceiver phi3 "
    "prophetnet qwen2 qwen3 reformer rembert roberta roformer smollm3 stablelm t5 umt5 xglm "
    "xlm-roberta xlnet xmod yoso"
)
MIXTURES = (
    "deepseek_v3 gpt_oss granitemoe jetmoe mixtral olmoe phimoe qwen2_moe switch_transformers"
)
STATE_SPACES = "bamba falcon_mamba jamba mamba recurrent_gemma rwkv zamba"
VISION = (
    "beit bit convnext convnextv2 cvt data2vec-vision deit dinov2 dpt efficientnet focalnet glpn "
    "hiera ijepa imagegpt levit mask2former maskformer-swin mobilenet_v2 mobilevit oneformer "
    "poolformer pvt regnet resnet sam segformer swiftformer swin swinv2 timesformer vit vit_mae "
    "vit_msn vitdet vivit yolos"
)
SPEECH = (
    "audio-spectrogram-transformer clap data2vec-audio encodec hubert mimi seamless_m4t sew-d "
    "speech_to_text speecht5 unispeech-sat vits wav2vec2 wav2vec2-bert wavlm whisper"
)
TOGETHER = (
    "align blip blip-2 bridgetower chinese_clip clip flava florence2 git groupvit grounding-dino "
    "kosmos-2 layoutlmv3 lxmert owlvit paligemma qwen2_5_vl siglip vilt visual_bert xclip"
)
OTHERS = "decision_transformer patchtst timesfm tapas"
ARCHITECTURES = " ".join((TEXT, MIXTURES, STATE_SPACES, VISION, SPEECH, TOGETHER, OTHERS)).split()

WITH_HEADS = [
    ("BertForMaskedLM", "bert"),
    ("BartForConditionalGeneration", "bart"),
    ("GPT2LMHeadModel", "gpt2"),
    ("LlamaForCausalLM", "llama"),
    ("T5ForConditionalGeneration", "t5"),
    ("OPTForCausalLM", "opt"),
    ("ViTForImageClassification", "vit"),
    ("SwinForImageClassification", "swin"),
    ("BeitForMaskedImageModeling", "beit"),
    ("Wav2Vec2ForCTC", "wav2vec2"),
    ("WhisperForConditionalGeneration", "whisper"),
    ("MambaForCausalLM", "mamba"),
    ("CLIPForImageClassification", "clip"),
]
"""Models with heads, most of them tied to the embeddings."""


def rows(module: nn.Module) -> list[Any]:
    """Names, shapes and dtypes of the state, of the buffers left out of it, and the ties."""
    first: dict[int, str] = {}
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return [
        [(name, tuple(t.shape), t.dtype) for name, t in module.state_dict().items()],
        [
            (name, tuple(t.shape), t.dtype, t.requires_grad, first.setdefault(id(t), name))
            for name, t in tensors
        ],
    ]


def assert_same_as_meta(build: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        model = build()
        if isinstance(model, transformers.PreTrainedModel):
            model.tie_weights()  # transformers 5.0 ties none on meta, where it does elsewhere
        expected = rows(model)
    with generators_stand_still(), fake_mode():
        module = build()
    assert rows(module) == expected
    assert all_fake(module)
    assert {t.device for t in module.state_dict().values()} == {torch.device("cpu")}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers(name: str) -> None:
    """The bare model of each architecture, as its default configuration makes it."""
    assert_same_as_meta(
        lambda: transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))
    )


@pytest.mark.parametrize(("class_name", "name"), WITH_HEADS)
def test_transformers_with_heads(class_name: str, name: str) -> None:
    """Tied heads are tied."""
    model_class = getattr(transformers, class_name)
    assert_same_as_meta(lambda: model_class(transformers.AutoConfig.for_model(name)))


def test_at_least_sixty_architectures() -> None:
    """No architecture is listed twice."""
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 60


# Forward and backward of small configurations, against eager.


def tokens(vocabulary: int = 50) -> torch.Tensor:
    return torch.arange(12).view(2, 6) % vocabulary


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
DECODER = {**SMALL, "intermediate_size": 24, "num_key_value_heads": 1}
IMAGE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16}

FORWARDS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": (
        "BertForMaskedLM",
        {**SMALL, "intermediate_size": 24},
        lambda: {"input_ids": tokens(), "attention_mask": torch.ones(2, 6), "labels": tokens()},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "bos_token_id": 0},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "llama": (
        "LlamaForCausalLM",
        DECODER,
        lambda: {"input_ids": tokens(), "labels": tokens(), "attention_mask": torch.ones(2, 6)},
    ),
    "qwen2": ("Qwen2ForCausalLM", DECODER, lambda: {"input_ids": tokens(), "labels": tokens()}),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {**SMALL, "intermediate_size": 24},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 50,
         "decoder_start_token_id": 0, "pad_token_id": 0},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "bart": (
        "BartForConditionalGeneration",
        {
            "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
            "vocab_size": 50, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
            "forced_eos_token_id": 2, "decoder_start_token_id": 2,
        },
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        {**DECODER, "num_local_experts": 4},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "mamba": (
        "MambaForCausalLM",
        {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "vit": (
        "ViTForImageClassification",
        {**IMAGE, "intermediate_size": 24, "patch_size": 8},
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])},
    ),
    "swin": (
        "SwinForImageClassification",
        {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])},
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])},
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        {
            **SMALL, "intermediate_size": 24, "conv_dim": [8, 8], "conv_stride": [5, 2],
            "conv_kernel": [10, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0,
        },
        lambda: {"input_values": torch.randn(2, 400)},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
            "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 20, "pad_token_id": 1,
            "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        },
        lambda: {"input_features": torch.randn(2, 8, 40), "labels": tokens()},
    ),
    "clip": (
        "CLIPModel",
        {
            "text_config": {**SMALL, "intermediate_size": 24, "eos_token_id": 2},
            "vision_config": {**IMAGE, "intermediate_size": 24, "patch_size": 8},
            "projection_dim": 8,
        },
        lambda: {
            "input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": True
        },
    ),
}  # fmt: skip


def run_forward(name: str, *, training: bool) -> list[Any]:
    class_name, options, inputs = FORWARDS[name]
    config = transformers.AutoConfig.for_model(name, **options)
    model = getattr(transformers, class_name)(config).train(training)
    output = model(**inputs(), output_hidden_states=True)
    if training and output.get("loss") is not None:
        output["loss"].backward()
    return [dict(output.items()), model]


def without_caches(result: list[Any]) -> list[Any]:
    output, model = result
    return [{k: v for k, v in output.items() if k not in ("cache", "past_key_values")}, model]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", FORWARDS)
def test_forward_of_small_models(name: str, training: bool) -> None:
    """Outputs, hidden states and gradients have eager's metadata."""
    torch.manual_seed(0)
    expected = describe(without_caches(run_forward(name, training=training)))
    with generators_stand_still(), fake_mode():
        result = without_caches(run_forward(name, training=training))
    assert all_fake(result)
    assert describe(result) == expected


def test_generate() -> None:
    """One step of greedy decoding with a cache: the next token depends on values, shapes do not."""
    class_name, options, _inputs = FORWARDS["llama"]

    def step() -> Any:
        model = getattr(transformers, class_name)(transformers.LlamaConfig(**options)).eval()
        first = model(tokens(), use_cache=True)
        name = "cache" if "cache" in first else "past_key_values"  # since transformers 5.24
        second = model(tokens()[:, :1], **{name: first[name]}, use_cache=True)
        return second.logits, second[name].get_seq_length(), model

    expected = describe(step())
    with fake_mode():
        assert describe(step()) == expected


# diffusers and timm.


DIFFUSERS = [
    "UNet2DModel", "UNet2DConditionModel", "UNet1DModel", "UNet3DConditionModel", "AutoencoderKL",
    "VQModel", "AutoencoderTiny", "DiTTransformer2DModel", "FluxTransformer2DModel",
    "SD3Transformer2DModel", "PixArtTransformer2DModel", "ControlNetModel", "AutoencoderKLWan",
]  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSERS)
def test_diffusers(name: str) -> None:
    """Default configurations, at a size that their constructors accept."""
    diffusers = pytest.importorskip("diffusers")
    options = {
        "DiTTransformer2DModel": {"num_layers": 4},
        "FluxTransformer2DModel": {"num_layers": 2, "num_single_layers": 2},
        "SD3Transformer2DModel": {"num_layers": 4},
        "PixArtTransformer2DModel": {"num_layers": 4, "caption_channels": 16},
    }
    assert_same_as_meta(lambda: getattr(diffusers, name)(**options.get(name, {})))


def test_diffusion_step() -> None:
    """A small UNet forward and backward, and a VAE there and back, as in eager."""
    diffusers = pytest.importorskip("diffusers")

    def step() -> Any:
        unet = diffusers.UNet2DModel(
            sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        sample = unet(torch.randn(2, 3, 16, 16), 10).sample
        sample.mean().backward()
        vae = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
        latent = vae.encode(torch.randn(1, 3, 16, 16)).latent_dist.sample()
        decoded = vae.decode(latent).sample
        return unet, sample, decoded

    expected = describe(step())
    with generators_stand_still(), fake_mode():
        result = step()
    assert describe(result) == expected
    assert all_fake(result)


def group_norm(x: torch.Tensor) -> tuple[int, ...]:
    last = x.view(2, 8, 2, 16).contiguous(memory_format=torch.channels_last)
    return nn.functional.group_norm(last, 4).stride()


STRIDE_PROGRAMS: dict[str, Callable[[torch.Tensor], tuple[int, ...]]] = {
    "dim_of_one": lambda x: (x.as_strided((1, 8, 4, 4), (8, 1, 32, 8)) * 2).stride(),
    "group_norm": group_norm,
}
"""Programs of an AutoencoderKL whose strides torch's meta kernels get wrong."""


@pytest.mark.parametrize("name", STRIDE_PROGRAMS)
def test_strides_of_length_one_and_of_memory_formats(name: str) -> None:
    program, real = STRIDE_PROGRAMS[name], torch.randn(512)
    assert program(fake_like(real)) == program(real)


TIMM_NAMES = (
    "vit_tiny_patch16_224 deit_tiny_patch16_224 beit_base_patch16_224 "
    "swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 convnext_tiny "
    "convnextv2_atto resnet18 resnetv2_50 regnety_002 efficientnet_b0 "
    "mobilenetv3_small_100 mixer_s16_224 maxvit_pico_rw_256 coatnet_0_rw_224 "
    "eva02_tiny_patch14_224 cait_xxs24_224 xcit_nano_12_p16_224 poolformer_s12 "
    "levit_128 densenet121 vgg11 inception_v3 nfnet_l0 hrnet_w18 dpn68 mobilevit_s "
    "pvt_v2_b0 volo_d1_224"
)


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("name", TIMM_NAMES.split())
def test_timm(name: str) -> None:
    """Default configurations."""
    timm = pytest.importorskip("timm")
    assert_same_as_meta(lambda: timm.create_model(name))

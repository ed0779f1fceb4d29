"""Inputs made up for models of transformers: the models run on them, as fakes and for real."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from conftest import all_fake, generators_stand_still
from torchfake import deferred_init, fake_like, fake_mode, is_deferred, is_fake
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect.inputs import example_inputs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
transformers = pytest.importorskip("transformers")

TEXT = (
    "bart bert bloom bros canine deberta-v2 electra gemma2 gpt2 gpt_neox llama mamba mixtral "
    "modernbert opt phi3 qwen3_moe roberta t5 xlnet xmod"
)
VISION = "beit convnext dinov2 segformer timesformer vit vitdet yolos"
SPEECH = "audio-spectrogram-transformer encodec speech_to_text wav2vec2 wav2vec2-bert whisper"
TOGETHER = "clip llava lxmert qwen2_5_vl qwen2_5_vl_vision siglip2 xclip"
OTHERS = "decision_transformer idefics2 patchtst perceiver timesfm"
ARCHITECTURES = " ".join((TEXT, VISION, SPEECH, TOGETHER, OTHERS)).split()

BATCH, SEQ = 3, 16


def built(name: str) -> Any:
    with fake_mode():
        return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))


def run(model: Any, inputs: dict[str, Any]) -> Any:
    with fake_mode():
        return model(**inputs)


def tensors(output: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(output))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_run(name: str) -> None:
    """At their defaults, as AutoModel makes them; the batch comes out as it went in."""
    model = built(name).eval()
    with generators_stand_still():
        inputs = example_inputs(model, batch=BATCH, seq=SEQ)
    assert all_fake(dict(inputs))
    output = run(model, inputs)
    assert all_fake(dict(output))
    batches = {tensor.shape[0] for tensor in tensors(output) if tensor.dim() > 1}
    if "grid_thw" in inputs:  # patches of all images in a row
        assert all(size % BATCH == 0 for size in batches)
    else:
        assert BATCH in batches


def test_about_fifty_architectures() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 40


# Against eager: models small enough to be real.

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 60,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 60, "n_positions": 40}
ENCODER_DECODER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 60,
}  # fmt: skip
AUDIO = {
    **SMALL, "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
}  # fmt: skip
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}
REAL: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT2,
    "GPT2DoubleHeadsModel": GPT2,
    "GPT2ForSequenceClassification": {**GPT2, "pad_token_id": 0},
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 1, "max_position_embeddings": 32},
    "BertForMaskedLM": {**SMALL, "max_position_embeddings": 32},
    "BertForTokenClassification": {**SMALL, "num_labels": 5},
    "BertForMultipleChoice": SMALL,
    "BertForQuestionAnswering": SMALL,
    "RobertaForMaskedLM": {**SMALL, "max_position_embeddings": 32},
    "T5ForConditionalGeneration": {
        "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60,
        "decoder_start_token_id": 0,
    },
    "BartForSequenceClassification": {**ENCODER_DECODER, "max_position_embeddings": 32},
    "ViTForImageClassification": {**IMAGE, "num_labels": 7},
    "ConvNextForImageClassification": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "SegformerForSemanticSegmentation": {
        "image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16,
    },
    "Wav2Vec2ForCTC": AUDIO,
    "Wav2Vec2ForSequenceClassification": {**AUDIO, "classifier_proj_size": 8},
    "WhisperForConditionalGeneration": {
        **ENCODER_DECODER, "num_mel_bins": 8, "max_source_positions": 20,
        "max_target_positions": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
    },
    "CLIPModel": {"text_config": SMALL, "vision_config": IMAGE},
}  # fmt: skip


def real_model(name: str) -> Any:
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**REAL[name]))


def real_input(value: Any) -> Any:
    """The values that a fake has; small numbers where it has none."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype.is_floating_point:
        return torch.rand(value.shape, dtype=value.dtype)
    return torch.tensor(value.tolist(), dtype=value.dtype)


@pytest.mark.parametrize("name", REAL)
def test_eager_runs_on_the_same(name: str) -> None:
    """With labels: eager takes inputs of these shapes and values, and gives what the fake gave."""
    model = real_model(name)
    inputs = example_inputs(model, batch=2, labels=True)
    expected = model(**{key: real_input(value) for key, value in inputs.items()})
    output = run(fake_like(model), inputs)
    described = [
        [(key, [(t.shape, t.dtype) for t in pytree.tree_leaves(value) if torch.is_tensor(t)])
         for key, value in result.items()]
        for result in (output, expected)
    ]  # fmt: skip
    assert described[0] == described[1]
    assert output.loss.shape == ()
    assert expected.loss.isfinite()


def test_a_real_model_runs_on_fakes_and_stays_as_it_is() -> None:
    model = real_model("BertForMaskedLM")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert is_fake(model(**example_inputs(model, labels=True)).loss)
    assert not is_fake(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_deferred_model_stays_deferred() -> None:
    model = deferred_init(real_model, "LlamaForCausalLM")
    inputs = example_inputs(model, labels=True)
    assert is_deferred(model)
    assert not any(is_deferred(value) for value in inputs.values())
    assert run(model, inputs).loss.shape == ()


# Labels.

HEADS = (
    "AlbertForPreTraining BertForNextSentencePrediction BertForPreTraining "
    "ASTForAudioClassification DistilBertForQuestionAnswering MBartForConditionalGeneration "
    "PatchTSTForRegression Qwen2ForTokenClassification SwinForMaskedImageModeling SiglipModel "
    "ViTMAEForPreTraining Speech2TextForConditionalGeneration Wav2Vec2ForAudioFrameClassification "
    "Wav2Vec2ForXVector"
)


@pytest.mark.parametrize("name", HEADS.split())
def test_labels_give_a_loss(name: str) -> None:
    model_class = getattr(transformers, name)
    with fake_mode():
        model = model_class(model_class.config_class())
    loss = run(model, example_inputs(model, batch=2, seq=SEQ, labels=True)).loss
    assert loss.numel() == 1
    loss.backward()
    assert any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "shape", "dtype"),
    [
        ({"num_labels": 3}, (2,), torch.int64),
        ({"num_labels": 1}, (2,), torch.float32),
        ({"num_labels": 3, "problem_type": "regression"}, (2, 3), torch.float32),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, (2, 3), torch.float32),
    ],
)
def test_labels_of_a_classifier_by_its_problem(
    settings: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    with fake_mode():
        config = transformers.BertConfig(**SMALL, **settings)
        model = transformers.BertForSequenceClassification(config)
    inputs = example_inputs(model, batch=2, labels=True)
    assert (tuple(inputs["labels"].shape), inputs["labels"].dtype) == (shape, dtype)
    assert run(model, inputs).loss.shape == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BertModel", "gives no loss for labels that are known here"),
        ("ViTModel", "gives no loss"),  # takes what to mask
        ("ViTMAEModel", "gives no loss"),
        ("YolosForObjectDetection", "matches its output to the labels by value"),
    ],
)
def test_models_without_labels(name: str, said: str) -> None:
    model_class = getattr(transformers, name)
    with fake_mode():
        model = model_class(model_class.config_class())
    with pytest.raises(InputsError, match=said):
        example_inputs(model, labels=True)


# Sizes, values, devices.


def test_resized() -> None:
    model = real_model("T5ForConditionalGeneration")
    inputs = example_inputs(model, batch=2, labels=True)
    assert (inputs.batch, inputs.seq) == (2, 128)
    larger = inputs.resized(batch=5)
    assert (larger.batch, larger.seq) == (5, 128)
    shorter = larger.resized(seq=7)
    assert (shorter.batch, shorter.seq) == (5, 7)
    assert {tuple(value.shape) for value in shorter.values()} == {(5, 7)}
    assert set(shorter) == {*inputs} == {
        "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels",
    }  # fmt: skip
    assert {tuple(value.shape) for value in inputs.values()} == {(2, 128)}


def test_images_have_no_length() -> None:
    model = real_model("ViTForImageClassification")
    assert example_inputs(model, seq=5).seq is None
    assert example_inputs(model).resized(batch=3)["pixel_values"].shape == (3, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("GPT2LMHeadModel", 40),
        ("LlamaForCausalLM", 32),
        ("RobertaForMaskedLM", 30),  # its positions begin at 2
        ("T5ForConditionalGeneration", 128),
        ("WhisperForConditionalGeneration", 24),
    ],
)
def test_the_length_is_what_the_model_has_positions_for(name: str, length: int) -> None:
    assert example_inputs(real_model(name)).seq == length


def test_frames_of_a_sound_are_those_that_the_model_sees() -> None:
    model = real_model("Wav2Vec2ForCTC")
    assert run(fake_like(model), example_inputs(model, seq=11)).logits.shape[1] == 11


def test_tokens_have_values_and_no_meaning() -> None:
    model = real_model("BartForSequenceClassification")
    ids = example_inputs(model, seq=4)["input_ids"].tolist()[0]
    assert ids[-1] == model.config.eos_token_id
    assert not {model.config.pad_token_id, model.config.bos_token_id, ids[-1]} & set(ids[:-1])


def test_masks_that_are_too_large_to_be_remembered() -> None:
    """Both ask whether anything is masked; where nobody can say, they are given no mask."""
    for name in ("BertModel", "LlamaModel"):
        model_class = getattr(transformers, name)
        with fake_mode():
            model = model_class(model_class.config_class(**SMALL, max_position_embeddings=8192))
        for batch, rows, is_known in ((16, 8192, True), (20, 8192, True), (200, 8192, False)):
            inputs = example_inputs(model, batch=batch, seq=rows)
            assert ("attention_mask" in inputs) is is_known
            assert run(model, inputs).last_hidden_state.shape == (batch, rows, 16)


@pytest.mark.parametrize(
    ("device", "on"), [("cuda:1", "cuda:1"), (torch.device("cuda"), "cuda:0"), ("cpu", "cpu")]
)
def test_on_a_device_that_is_not_there(device: Any, on: str) -> None:
    """The model's, or the one that is named."""
    real = real_model("LlamaForCausalLM")
    fake = fake_like(real, device=device)
    for inputs in (example_inputs(fake), example_inputs(real, device=device)):
        assert {str(value.device) for value in inputs.values()} == {on}
        assert {str(value.device) for value in inputs.resized(batch=2).values()} == {on}
    with fake_mode(fake_cuda=2):
        assert str(fake(**inputs).logits.device) == on


def test_images_are_of_the_models_dtype() -> None:
    model = fake_like(real_model("ViTForImageClassification")).to(torch.bfloat16)
    inputs = example_inputs(model)
    assert inputs["pixel_values"].dtype == run(model, inputs).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seq": -1}, {"batch": 1.5}, {"seq": True}])
def test_sizes_are_whole_numbers(sizes: dict[str, Any]) -> None:
    with pytest.raises(InputsError, match="whole number of 1 or more"):
        example_inputs(real_model("GPT2LMHeadModel"), **sizes)


def test_what_is_not_of_transformers() -> None:
    with pytest.raises(InputsError, match="not for a Linear: make them yourself"):
        example_inputs(torch.nn.Linear(3, 4))
    with pytest.raises(InputsError, match="not for a type"):
        example_inputs(torch.nn.Linear)


def test_what_nothing_can_be_made_up_for() -> None:
    with fake_mode():
        model = transformers.Kosmos2Model(transformers.Kosmos2Config())
    with pytest.raises(InputsError, match=r"seq must be 65 or more, and is 16"):
        example_inputs(model, seq=16)
    assert run(model.eval(), example_inputs(model)).last_hidden_state.shape[1] == 128
    with fake_mode():
        session = transformers.Sam2VideoModel(transformers.Sam2VideoConfig())
    with pytest.raises(InputsError, match="needs 'inference_session'"):
        example_inputs(session)


def test_a_model_on_meta() -> None:
    """Its twin is on the CPU, and so are its inputs."""
    with torch.device("meta"):
        model = real_model("GPT2LMHeadModel")
    inputs = example_inputs(model)
    assert {value.device.type for value in inputs.values()} == {"cpu"}
    assert run(fake_like(model), inputs).logits.device.type == "cpu"


def test_fakes_cannot_be_everywhere() -> None:
    with pytest.raises(DeviceError, match="fakes cannot be on 'meta'"):
        example_inputs(real_model("GPT2LMHeadModel"), device="meta")

"""What cannot be served is refused in one line, with what to give instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from torchfake import fake_mode, serve
from torchfake.distributed import search_servers
from torchfake.errors import DeviceError, InputsError

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

LAYERS = ("hidden_size=256", "num_hidden_layers=2", "num_attention_heads=8", "vocab_size=64")
LLAMA = ("transformers:LlamaForCausalLM", (*LAYERS, "num_key_value_heads=4"))
GPT2 = ("transformers:GPT2LMHeadModel", ("n_embd=64", "n_layer=2", "n_head=4", "n_positions=128"))
MIXTRAL = (
    "transformers:MixtralForCausalLM",
    (*LAYERS, "intermediate_size=256", "num_key_value_heads=4", "num_local_experts=6"),
)
VIT = ("transformers:ViTForImageClassification", ("num_hidden_layers=2",))
BERT = ("transformers:BertForMaskedLM", ("num_hidden_layers=2",))
WHISPER = ("transformers:WhisperForConditionalGeneration", ("encoder_layers=1", "decoder_layers=1"))
T5 = ("transformers:T5ForConditionalGeneration", ("num_layers=2",))
LINEAR = ("torch.nn:Linear", ("in_features=2", "out_features=3"))


def served(model: tuple[str, tuple[str, ...]], **options: Any) -> Any:
    target, overrides = model
    given = {"context": 128, "gpu": "h100-80gb", **options}
    return serve(target, overrides=overrides, **given)


def refusal(model: tuple[str, tuple[str, ...]], **options: Any) -> str:
    with pytest.raises(InputsError) as caught:
        served(model, **options)
    [line] = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (LLAMA, {"mesh": "tp=3"}, "tp=3 does not divide the 8 heads of LlamaForCausalLM: give a "
         "divisor, 1, 2, 4, 8"),
        (LLAMA, {"gpus": 3}, "1, 2, 4, 8. Without mesh=, the GPUs split tensors; mesh='pp=3' "
         "splits layers instead"),
        (LLAMA, {"mesh": "tp=16"}, "give a divisor, 1, 2, 4, 8"),
        (LLAMA, {"mesh": "pp=4"}, "pp=4 is more than the 2 layers of LlamaForCausalLM"),
        (LLAMA, {"mesh": "ep=2"}, "ships no expert-parallel plan (base_model_ep_plan): leave ep "
         "out of the mesh"),
        (MIXTRAL, {"mesh": "ep=4"}, "ep=4 does not divide the 6 experts of MixtralForCausalLM: "
         "give a divisor, 1, 2, 3, 6"),
        (LLAMA, {"mesh": "dp=2"}, "a server has replicas, replicate=2"),
        (LLAMA, {"mesh": "cp=2"}, "leave it out of the mesh of a server"),
        (LLAMA, {"mesh": "sp=2"}, "the mesh has an axis 'sp'"),
        (LLAMA, {"weights": "fp7"}, "weights='fp7' is no format that is served: give one of bf16"),
        (LLAMA, {"weights": "gptq-128"}, "is no format that is served: give one of bf16"),
        (LLAMA, {"weights": "int4"}, "is no format that is served; did you mean awq, gptq, mxfp4 "
         "or nvfp4?"),
        (LLAMA, {"weights": "fp8", "gpu": "a100-80gb"}, "A100-SXM4-80GB has no kernels for "
         "weights='fp8', which need compute capability 8.9: give one of bf16"),
        (LLAMA, {"gpu": "mi300x-192gb"}, "of AMD Instinct MI300X are not known here: take a GPU "
         "whose figures are"),
        (GPT2, {"context": 512}, "has learned 128 positions, and does not run on 512 tokens: give "
         "a context of at most 128"),
        (VIT, {}, "ViTForImageClassification is no language model of transformers"),
        (BERT, {}, "BertForMaskedLM is no language model of transformers that generates text, so "
         "it cannot be served: torchfake fit, or estimate in Python, tells"),
        (LINEAR, {}, "Linear is no language model of transformers"),
        (T5, {}, "T5ForConditionalGeneration has an encoder, and served are decoders: fit --serve "
         "CONTEXT,cache=dynamic tells the memory of its generate"),
        (WHISPER, {}, "has an encoder, and served are decoders: fit --batch 1 tells the memory of "
         "a forward pass"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_remedy(
    model: Any, options: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(model, **options)


def test_another_layout_is_named_only_where_tensors_cannot_be_split() -> None:
    layers = "mesh='pp=2' splits layers instead"
    assert layers in refusal(GPT2, gpus=2)
    for model, options in (
        (BERT, {}),
        (LLAMA, {"weights": "fp8"}),
        (LLAMA, {"gpu": "mi300x-192gb"}),
    ):
        assert layers not in refusal(model, gpus=2, **{"gpu": "a100-80gb", **options})
    assert "instead" not in refusal(LLAMA, mesh="tp=3")


def test_a_checkpoint_in_an_unknown_format_is_refused_unless_a_format_is_given(
    tmp_path: Path,
) -> None:
    config: dict[str, Any] = dict(part.split("=") for part in LLAMA[1])
    config = {key: int(value) for key, value in config.items()}
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    config |= {"quantization_config": {"quant_method": "exl3", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = str(tmp_path), ()
    assert "has exl3, which is no format that is served: give weights=" in refusal(model)
    assert served(model, weights="awq").weights == "awq"


def test_numbers_of_gpus_and_the_cpu_are_no_names() -> None:
    for name, said in (
        ("8xh100", "torchfake plan and torchfake serve take 8 of them: --gpus 8 --gpu h100-80gb"),
        ("cpu", "torchfake inspect, or estimate without gpu=, tells the memory on the CPU"),
    ):
        with pytest.raises(DeviceError, match=f"there is no such GPU.*{said}"):
            served(LLAMA, gpu=name)


def test_a_quantized_checkpoint_that_does_not_fit_is_offered_fewer_bits(tmp_path: Path) -> None:
    """And is not said to be built unquantized: its weights are counted in its format."""
    config: dict[str, Any] = dict(part.split("=") for part in LLAMA[1])
    config = {key: int(value) for key, value in config.items()} | {"hidden_size": 8192}
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    config |= {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def on_one(users: int, **options: Any) -> Any:
        given = {"gpu": "b200-180gb", "utilization": 0.02, "cache_dtype": "bf16", **options}
        given["pass_tokens"] = 256  # so few that fewer are not tried
        return served((str(tmp_path), ()), users=users, **given)

    users = on_one(1).most_users_on_average + 1
    found = on_one(users)
    assert (found.weights, found.fits, found.notes) == ("fp8-block", False, ())
    assert "--weights nvfp4" in found.remedy
    assert "--weights" not in on_one(users, weights="fp8-block").remedy


def test_more_ranks_than_key_value_heads_have_the_same_ones() -> None:
    one, eight = (served(LLAMA, mesh=f"tp={n}").server for n in (1, 8))
    assert eight.cache_bytes(4) * 4 == one.cache_bytes(4)


def test_the_first_line_says_that_a_context_is_past_the_positions_of_the_config() -> None:
    within, past = (str(served(LLAMA, context=n)).splitlines()[0] for n in (2048, 4096))
    assert within.startswith("fits           yes: 1 user x 2,048 tokens on 1 ")
    assert past.startswith(
        "fits           yes, but past the 2,048 tokens that the model was made for: 1 user x 4,096 "
    )


def test_a_model_in_place_of_its_name() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with fake_mode():
        models = GPT2LMHeadModel(GPT2Config(n_layer=1)), nn.Linear(2, 3)
    for model, name in zip(
        models, ("transformers:GPT2LMHeadModel", "torch.nn.modules.linear:L"), strict=True
    ):
        with pytest.raises(TypeError, match=f"a name that it can be built from, '{name}"):
            serve(model, context=64, gpu="h100-80gb")


def test_the_first_line_of_a_search_says_it_too() -> None:
    target, overrides = LLAMA
    given = {"overrides": overrides, "context": 4096, "gpu": "h100-80gb", "gpus": 1}
    found = search_servers(target, users=1, **given)
    first, _, how = str(found).splitlines()[0].rpartition("; ")
    assert first.endswith(" users, past the 2,048 tokens that the model was made for")
    assert how == "serves 1 user with answers of 2,048 tokens"


EXPANDED = "attention expands a cache in {} on this GPU, for a time not counted here"


def test_what_a_cache_dtype_costs_on_a_gpu_is_noted() -> None:
    hopper, ampere = (served(LLAMA, gpu=g, cache_dtype="fp8") for g in ("h100-80gb", "a100-80gb"))
    assert (hopper.notes, ampere.notes) == ((), (EXPANDED.format("fp8"),))
    int4 = f"{EXPANDED.format('int4')}; LMDeploy has such a cache, vLLM and TensorRT-LLM have none"
    assert served(LLAMA, cache_dtype="int4").notes == (int4,)


def test_weights_that_the_gpu_cannot_multiply_are_said_to_be_expanded() -> None:
    hopper, blackwell = (served(LLAMA, gpu=g, weights="mxfp4") for g in ("h100-80gb", "b200-180gb"))
    assert hopper.weights == "mxfp4, multiplied in bf16"
    assert blackwell.weights == "mxfp4"


def test_types_in_place_of_a_number_of_gpus() -> None:
    said = r"gpus=\['l4'\] is not a whole number of 1 or more; types of GPUs are given as gpu="
    with pytest.raises(InputsError, match=said):
        search_servers(LLAMA[0], gpus=["l4"])  # type: ignore[arg-type]

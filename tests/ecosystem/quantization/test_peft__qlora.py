"""QLoRA in one line: estimates, commands and plans, equal to quantizing and adapting by hand."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import peft
import pytest
import torch
import torchao.quantization as quantization
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from torchfake import errors, estimate, example_inputs, fake_mode, fit, plan
from torchfake.cli.commands import app
from torchfake.inspect import weights

pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "num_hidden_layers": 32,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "num_hidden_layers": 2,
}  # fmt: skip


def lora() -> peft.LoraConfig:
    """A new config: ``get_peft_model`` writes the names of the layers to the one it is given."""
    return peft.LoraConfig(r=16, target_modules="all-linear")


def llama(**sizes: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16)


def with_layers(model: nn.Module, make: Any) -> nn.Module:
    """The model, whose linear layers but the last are those of bitsandbytes, on fake CUDA."""
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, nn.Linear) and name != "lm_head":
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, make(layer).to("cuda"))
    return model.to("cuda")


def nf4(layer: nn.Linear, storage: torch.dtype = torch.uint8) -> nn.Module:
    made = bnb.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=False, compute_dtype=torch.bfloat16,
        quant_type="nf4", quant_storage=storage,
    )  # fmt: skip
    made.weight = bnb.nn.Params4bit(
        layer.weight.data, requires_grad=False, quant_type="nf4", quant_storage=storage, module=made
    )
    return made


def int8(layer: nn.Linear) -> nn.Module:
    made = bnb.nn.Linear8bitLt(
        layer.in_features, layer.out_features, bias=False, has_fp16_weights=False, threshold=6.0
    )
    made.weight = bnb.nn.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
    return made


def by_hand(scheme: str, **sizes: Any) -> Any:
    model = llama(**sizes)
    if scheme == "nf4":
        model = with_layers(model, nf4)
        model.is_loaded_in_4bit = True
    elif scheme == "bnb-int8":
        model = with_layers(model, int8)
        model.is_loaded_in_8bit = True
    else:
        kinds = {"int8": "Int8WeightOnlyConfig", "fp8": "Float8WeightOnlyConfig"}
        config = getattr(quantization, kinds[scheme])()
        model = model.to("cuda")
        quantization.quantize_(
            model, config, lambda layer, name: isinstance(layer, nn.Linear) and name != "lm_head"
        )
    return model


def test_an_8b_takes_what_it_takes_by_hand() -> None:
    with fake_mode():
        model = llama(**LLAMA_8B)
    inputs = example_inputs(model, batch=1, seq=512, labels=True)
    step: dict[str, Any] = {"optimizer": "adamw", "gpu": "h100-80gb"}
    found = estimate(model, inputs, weights="nf4", peft=lora(), **step)
    assert f"{found.peak.by_category['parameters'] / 1e9:.2f}" == "5.87"
    with fake_mode(fake_cuda=True):
        adapted = peft.get_peft_model(by_hand("nf4", **LLAMA_8B), lora())
    other = estimate(adapted, inputs, **step)
    assert found.peak.by_category == other.peak.by_category
    assert found.peak_bytes == other.peak_bytes
    assert "nf4: bitsandbytes" in str(found)
    assert "Lora, rank 16, on all linear layers" in str(found)
    assert found.to_dict()["weights"] == "nf4"


@pytest.mark.parametrize("scheme", ["nf4", "bnb-int8", "int8", "fp8"])
def test_every_scheme_as_by_hand(scheme: str) -> None:
    with fake_mode():
        model = llama(**SMALL)
    with fake_mode(fake_cuda=True):
        made = by_hand(scheme, **SMALL)
        adapted = peft.get_peft_model(by_hand(scheme, **SMALL), lora())
    answer = "typical" if scheme == "bnb-int8" else None
    inputs = example_inputs(model, batch=2, seq=64, labels=True)
    gpu: dict[str, Any] = {"gpu": "h100-80gb", "answer": answer, "round_to": 1}
    found = estimate(model, inputs, mode="inference", weights=scheme, **gpu)
    assert found.peak_bytes == estimate(made, inputs, mode="inference", **gpu).peak_bytes
    held = found.peak.by_category["parameters"] + found.peak.by_category["buffers"]
    assert held == weights(model, scheme).num_bytes
    found = estimate(model, inputs, optimizer="adamw", weights=scheme, peft=lora(), **gpu)
    assert found.peak_bytes == estimate(adapted, inputs, optimizer="adamw", **gpu).peak_bytes


def test_int8_of_bitsandbytes_assumes_no_outliers() -> None:
    with fake_mode():
        model = GPT2LMHeadModel(GPT2Config(n_layer=1))  # of Conv1D
    found = estimate(model, weights="bnb-int8", batch=1, gpu="h100-80gb")
    assert {answer.answered_by for answer in found.answers} == {"no_outliers"}
    assert found.peak.by_category["parameters"] < weights(model, "bnb-int8").unquantized_bytes


def test_int4_runs_but_is_not_trained() -> None:
    with fake_mode():
        model = llama(**{**SMALL, "hidden_size": 1024, "intermediate_size": 1024})
    found = estimate(model, weights="int4", batch=1, gpu="h100-80gb")
    assert found.peak.by_category["parameters"] < weights(model, "int8").num_bytes
    with pytest.raises(RuntimeError, match="_weight_int4pack_mm is not implemented"):
        estimate(model, weights="int4", peft=lora(), optimizer="adamw", batch=1, gpu="h100-80gb")


def test_largest_batches() -> None:
    with fake_mode():
        model = llama(**SMALL)
    step: dict[str, Any] = {"batch": 1, "seq": 64, "optimizer": "adamw"}
    (found,) = fit(model, "t4-16gb", weights="nf4", peft=lora(), **step)
    (plain,) = fit(model, "t4-16gb", **step)
    assert found.fits
    assert found.peak_bytes < plain.peak_bytes


def run(*arguments: str) -> tuple[int, str]:
    sizes = [word for key, value in SMALL.items() for word in ("-c", f"{key}={value}")]
    command, *options = arguments
    done = CliRunner().invoke(app, [command, "transformers:LlamaForCausalLM", *sizes, *options])
    return done.exit_code, done.stdout + done.stderr


def test_in_one_line() -> None:
    options = ("--dtype", "bf16", "--seq", "64", "--lora", "16", "--weights", "nf4")
    code, out = run("fit", "--train", *options, "--optimizer", "adamw", "--gpu", "t4", "--json")
    assert code == 0
    said = json.loads(out[out.index("{") :])["estimate"]
    assert (said["mode"], said["weights"]) == ("training", "nf4")
    assert said["adapters"] == "Lora, rank 16, on all linear layers"
    code, out = run("fit", *options, "--lora-target", "q_proj,v_proj", "--gpu", "t4")
    assert code == 0
    assert "Lora, rank 16, on q_proj, v_proj" in out
    code, out = run("fit", *options, "--lora-target", "query", "--gpu", "t4")
    assert code == 2
    assert "has no layer 'query'" in out
    code, out = run("fit", "--weights", "nf4", "--gpu", "t4")
    assert code == 0
    assert "inference on cuda:0" in out


def test_a_plan_of_fsdp_and_qlora() -> None:
    options = (
        "--gpus",
        "4",
        "--gpu",
        "h100-80gb",
        "--seq",
        "64",
        "--lora",
        "16",
        "--weights",
        "nf4",
        "--json",
    )
    code, out = run("plan", *options)
    assert code == 0
    said = json.loads(out[out.index("{") :])
    assert said["precision"] == "bf16"
    assert any("weights nf4" in note for note in said["notes"])

    def build() -> Any:
        model = with_layers(llama(**SMALL), lambda layer: nf4(layer, torch.bfloat16))
        model.is_loaded_in_4bit = True
        return peft.get_peft_model(model, lora())

    def shard(model: Any, mesh: Any) -> Any:
        model.base_model.model.config.use_cache = False
        for block in model.base_model.model.model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    with fake_mode():
        inputs = example_inputs(llama(**SMALL), batch=1, seq=64, labels=True)
    found = plan(
        build, mesh_shape=4, parallelize=shard, inputs=inputs, optimizer="adamw", gpu="h100-80gb"
    )
    held = said["plan"]["by_ranks"][0]["most_bytes"]
    assert held["parameters"] == found.of_rank(0).parameter_bytes
    assert held["optimizer state"] == found.of_rank(0).optimizer_bytes
    assert said["plan"]["peak_bytes"] == found.peak_bytes
    code, out = run("plan", *options, "--precision", "mixed")
    assert code == 2
    assert "are codes: give bf16" in out
    code, out = run("plan", *options, "--mesh", "tp=4")
    assert code == 2
    assert "are planned along dp and replicate" in out


def test_what_is_refused() -> None:
    with fake_mode():
        model = llama(**SMALL)
    with pytest.raises(errors.InputsError, match="quantized weights are not trained"):
        estimate(model, weights="nf4", optimizer="adamw", batch=1)
    with pytest.raises(errors.InputsError, match="has no layers that weights='nf4' quantizes"):
        estimate(nn.ReLU(), torch.ones(2), weights="nf4")


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "examples" / "qlora.py"
    runpy.run_path(str(example), run_name="__main__")
    assert "5.87 GB of parameters" in capsys.readouterr().out


def test_where_adapters_do_not_fit_a_plan_with_checkpointing_is_suggested() -> None:
    sizes = ("-c", "hidden_size=2048", "-c", "intermediate_size=11008", "-c", "vocab_size=500")
    options = ("--lora", "4", "--gpu", "t4", "--batch", "256", "--seq", "128")
    code, out = run("fit", "--train", "--dtype", "bf16", *sizes, *options)
    assert code == 1
    first = re.findall(r"(?m)^next +torchfake (.*)$", out)[0].split()
    assert first[:2] == ["plan", "transformers:LlamaForCausalLM"]
    assert {"--lora", "--checkpoint"} < {*first}
    done = CliRunner().invoke(app, first)
    assert done.exit_code == 0

"""``fit`` and ``plan`` of a config with a ``quantization_config``, whose format is not counted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchfake.inspect import inspect_target
from torchfake.inspect.steps import quantized

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import

Run = Callable[..., tuple[int, str, str]]
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    def write(quantization: dict[str, Any]) -> str:
        sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000}
        named = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
        config = {**named, **sizes, **heads, "quantization_config": quantization}
        (tmp_path / "config.json").write_text(json.dumps(config))
        gpus = '[small]\ntotal_memory = "1.05 GiB"\n[large]\ntotal_memory = "9 GiB"\n'
        (tmp_path / "gpus.toml").write_text(gpus)
        return str(tmp_path)

    return write


def _lines(out: str, name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in out.splitlines() if line.startswith(name)]


def test_fit_says_which_format_it_does_not_count(
    run: Run, folder: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchfake.inspect.next_commands.library_is_missing", lambda name: True)
    target = folder(FP8)
    options = ("--vary", "none", "--profiles", f"{target}/gpus.toml")
    code, out, _ = run("fit", target, *options, "--gpu", "large")
    assert code == 0
    assert out.startswith("fits ")
    assert "inference in bf16 and not in the fp8 of its quantization_config, " in out
    known = inspect_target(target).weights
    assert known is not None
    (other,) = _lines(out, "quantized")
    assert other.startswith(f"{known.num_bytes / 1e6:.1f} MB (")
    assert " of weights in fp8 were not counted: torchfake serve " in other
    code, out, _ = run("fit", target, *options, "--gpu", "small")
    assert code == 1
    assert _lines(out, "fits")[0].startswith("no, unquantized: ")
    _, out, _ = run("fit", target, *options)
    assert _lines(out, "fits")[0].startswith("yes, on 1 of 2 GPUs: large; inference in bf16 and ")
    _, out, _ = run("fit", target, *options, "--gpu", "large", "--json")
    found = json.loads(out)
    assert found["other_format"]["format"] == found["estimate"]["other_format"] == "fp8"
    assert found["other_format"]["weights_bytes"] == known.num_bytes
    command = shlex.split(found["other_format"]["command"])[1:]
    assert command[:4] == ["serve", target, "--gpu", "large"]


def test_fit_names_the_scheme_that_it_can_run(
    run: Run, folder: Callable[[dict[str, Any]], str]
) -> None:
    target = folder(NF4)
    options = ("--vary", "none", "--gpu", "l4")
    _, out, _ = run("fit", target, *options)
    command = shlex.split(_lines(out, "quantized")[0].partition("not counted: torchfake ")[2])
    assert command[:2] == ["fit", target]
    assert command[command.index("--weights") + 1] == "nf4"
    code, out, _ = run(*command)
    assert code == 0
    assert "not in the" not in out.splitlines()[0]
    _, out, _ = run("fit", target, *options, "--train")
    assert _lines(out, "quantized")[0].endswith(" of weights in nf4 were not counted")
    assert "training with adamw in bf16 and not in the nf4 of its quantization_config" in out


def test_formats_without_a_known_size(run: Run, folder: Callable[[dict[str, Any]], str]) -> None:
    target = folder({"quant_method": "hqq", "nbits": 4})
    code, out, _ = run("fit", target, "--vary", "none", "--gpu", "l4")
    assert code == 0
    assert "inference in bf16 and not in the hqq of its quantization_config" in out
    assert _lines(out, "quantized") == ["weights in hqq were not counted"]
    target = folder({**FP8, "dequantize": True})
    _, out, _ = run("fit", target, "--vary", "none", "--gpu", "l4")
    assert "quantization_config" not in out


def test_plan_says_it_too(run: Run, folder: Callable[[dict[str, Any]], str]) -> None:
    target = folder(FP8)
    options = ("--gpus", "2", "--gpu", "l4", "--seq", "16")
    _, out, _ = run("plan", target, *options)
    said = "training with adamw in mixed precision and not in the fp8 of its quantization_config"
    assert said in out.splitlines()[0]
    known = inspect_target(target).weights
    assert known is not None
    note = f"the fp8 of its quantization_config, {known.num_bytes / 1e6:.1f} MB of weights, was"
    assert any(each.startswith(note) for each in _lines(out, "note"))
    _, out, _ = run("plan", target, *options, "--json")
    assert json.loads(out)["plan"]["other_format"] == "fp8"
    _, out, _ = run("plan", target, *options, "--search", "--batch", "2")
    assert "in mixed precision and not in the fp8 of its quantization_config" in out


def test_served_formats_are_those_of_serve() -> None:
    from torchfake.distributed.passes.formats import format_of_config
    from torchfake.inspect.next_commands import _SERVED

    assert set(quantized._AS_DESCRIBED.values()) <= set(quantized._QUANTIZERS)
    group = {"weights": {"type": "float", "num_bits": 8}}
    needed = {"quant_algo": "FP8", "config_groups": {"group_0": group}}
    for name in _SERVED:
        assert format_of_config({"quant_method": name, **needed}) is not None

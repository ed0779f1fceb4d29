"""Models whose tensors are alike and whose configs are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake.inspect import inspect_target
from torchfake.inspect.contents.configs import ConfigChange, changes_text, config_changes
from torchfake.inspect.contents.diff import diff
from torchfake.inspect.records.units import bytes_text

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16",
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "vocab_size": 100,
    "num_attention_heads": 4, "num_key_value_heads": 4, "rope_theta": 500000.0,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def folder(name: str, **changes: Any) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**LLAMA, **changes}))
        return str(tmp_path / name)

    return folder


def test_a_key_that_differs(write: Write) -> None:
    found = diff(write("a"), write("b", rope_theta=10000.0, max_position_embeddings=64))
    assert not found.is_equal
    assert found.headline == (
        "the same 14 tensors; the configs differ: max_position_embeddings 2048 -> 64, "
        "rope_parameters.rope_theta 500000.0 -> 10000.0"
    )
    changed = {"key": "rope_parameters.rope_theta", "a": 500000.0, "b": 10000.0}
    assert changed in found.to_dict()["config"]
    assert "\nconfigs (2)\n  max_position_embeddings     2048 -> 64\n" in str(found)


def test_another_format_of_weights(write: Write) -> None:
    a, b = write("a"), write("b", quantization_config=FP8)
    found = diff(a, b)
    known = inspect_target(b).weights
    assert known is not None
    sizes = bytes_text(found.a.size_bytes), bytes_text(known.num_bytes)
    assert found.headline.startswith(
        f"different: {sizes[0]} unquantized in A, {sizes[1]} in fp8 in B; the same 14 tensors "
        "before that; the configs differ: quantization_config.quant_method none -> fp8, "
    )
    other = diff(b, write("c", quantization_config={"quant_method": "hqq", "nbits": 4}))
    assert other.headline.startswith(f"different: {sizes[1]} in fp8 in A, in hqq in B; ")


def test_what_says_nothing_of_the_model(write: Write) -> None:
    named = {"_name_or_path": "x", "transformers_version": "4.0.0", "max_position_embeddings": 2048}
    found = diff(write("a"), write("b", **named))
    assert found.is_equal
    assert found.headline.startswith("identical: 14 tensors, ")
    assert not diff(write("c"), write("d", hidden_size=512)).is_equal


def test_checkpoints(write: Write) -> None:
    """With a config, which may be one that transformers does not know, and without."""
    tensors = {"weight": torch.zeros(2, 3)}
    names = ("a", "b", "c", "d")
    changes: tuple[dict[str, Any], ...] = (
        {}, {"rope_theta": 1.0}, {"model_type": "own"}, {"model_type": "own", "rope_theta": 1.0},
    )  # fmt: skip
    a, b, c, d = (write(name, **each) for name, each in zip(names, changes, strict=True))
    for folder in (a, b, c, d):
        safetensors.save_file(tensors, f"{folder}/model.safetensors")
    assert diff(a, a).headline == "identical: 1 tensor, 6 values, 24 B; values were not compared"
    without = diff(f"{a}/model.safetensors", b)
    assert without.is_equal
    theta = "the same 1 tensor; the configs differ: rope_parameters.rope_theta 500000.0 -> 1.0"
    assert diff(a, b).headline == theta
    assert diff(c, d).headline == theta.replace("rope_parameters.", "")


def test_changes_as_text() -> None:
    changes = config_changes({"a": 1, "b": {"c": (1,)}, "d": "x" * 50}, {"a": 1, "b": {"c": [1]}})
    assert changes == (ConfigChange("d", "x" * 50, None),)
    assert changes[0].values == f"{'x' * 40}... -> none"
    assert config_changes({}, None) == ()
    many = config_changes({}, dict.fromkeys("abcde", 1))
    assert changes_text(many).endswith("a none -> 1, b none -> 1, c none -> 1 and 2 more")


def test_modules_with_a_config_of_their_own() -> None:
    nets = nn.Linear(2, 3), nn.Linear(2, 3)
    for net, depth in zip(nets, (1, 2), strict=True):
        net.config = {"depth": depth}  # type: ignore[assignment]
    assert diff(*nets).headline == "the same 2 tensors; the configs differ: depth 1 -> 2"
    outer = nn.ModuleDict({"model": nets[1]})
    outer.config = nets[1].config
    assert diff(nets[0], outer).headline == (
        "the same 2 tensors but for the prefix 'model.' of names in B; the configs differ: "
        "depth 1 -> 2"
    )
    assert diff(nets[0], nn.Linear(2, 3)).is_equal

"""Two models or checkpoints compared: what differs is what was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.inspect.compared_models import (
    EDITS,
    MODELS,
    SMALL,
    add_buffer,
    model_of,
    remove_parameter,
    stack,
)
from torchfake import deferred_init, fake_like, fake_mode, is_deferred
from torchfake.errors import TargetError
from torchfake.inspect.contents.diff import Diff, diff

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


transformers = pytest.importorskip("transformers")


safetensors = pytest.importorskip("safetensors.torch")


def changes_of(found: Diff) -> tuple[set[str], set[str], dict[str, tuple[str, ...]]]:
    return (
        {tensor.name for tensor in found.only_a},
        {tensor.name for tensor in found.only_b},
        {change.name: change.what for change in found.changed},
    )


# Modules.


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_equal_to_its_fake_copies(name: str) -> None:
    """Real, fake and deferred; a tied tensor is counted once."""
    real, deferred = model_of(name), deferred_init(model_of, name)
    with fake_mode():
        fake = model_of(name)
    for other in (fake, deferred, fake_like(real)):
        found = diff(real, other)
        assert found.is_equal
        assert found.a.num_parameters == sum(p.numel() for p in real.parameters())
        assert found.a.num_values == found.b.num_values
        tensors = [*real.parameters(), *real.buffers()]
        assert found.a.size_bytes == found.b.size_bytes == sum(t.nbytes for t in tensors)
        assert found.a.num_tensors == len(tensors)
        assert found.num_equal == len(tensors)
    assert is_deferred(deferred)


@settings(deadline=None)  # other processes may take the time
@given(st.sets(st.sampled_from(list(EDITS))))
def test_what_was_changed_is_what_differs(edits: set[Any]) -> None:
    """Any of the edits together, either way round."""
    a, b = stack(), stack()
    changed: dict[str, tuple[str, ...]] = {}
    for edit in (edit for edit in EDITS if edit in edits):
        edit(b)
        for name, what in EDITS[edit][1].items():
            changed[name] = (*changed.get(name, ()), *what)
    only_a = set(EDITS[remove_parameter][0]) if remove_parameter in edits else set()
    only_b = set(EDITS[add_buffer][0]) if add_buffer in edits else set()
    there, back = diff(a, b), diff(b, a)
    assert changes_of(there) == (only_a, only_b, changed)
    assert changes_of(back) == (only_b, only_a, changed)
    assert there.is_equal is not bool(edits)
    assert there.num_equal == back.num_equal == len(there.a.tensors) - len(only_a) - len(changed)


def test_shapes_that_are_not_there_yet_are_not_compared() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    found = diff(lazy, nn.Sequential(nn.Linear(2, 3)))
    assert found.is_equal
    assert found.a.size_bytes == 0


def test_a_module_inside_itself() -> None:
    module = stack()
    module.layers[0].above = module
    assert diff(module, stack()).is_equal


# Checkpoints.


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """A model and its checkpoint, in several files."""

    def save(name: str) -> tuple[Any, Path]:
        model = model_of(name)
        model.save_pretrained(tmp_path / name, max_shard_size="6KB")
        return model, tmp_path / name

    return save


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_equal_to_its_checkpoint(name: str, saved: Any, tmp_path: Path) -> None:
    """Module, TARGET, config, directory, index, pickle: each with each."""
    model, folder = saved(name)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    index = folder / "model.safetensors.index.json"
    assert index.exists()
    sources = [model, str(folder / "config.json"), folder, index, tmp_path / "pytorch_model.bin"]
    for a in sources:
        for b in sources:
            found = diff(a, b)
            assert found.is_equal, found.plain()
            assert found.a.num_values == found.b.num_values
            assert found.a.size_bytes == found.b.size_bytes
            assert found.a.num_tensors == found.b.num_tensors


def test_a_directory_of_both_is_its_weights(saved: Any, tmp_path: Path) -> None:
    _, folder = saved("LlamaForCausalLM")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    assert not diff(folder / "config.json", folder).is_equal
    alone = tmp_path / "config_alone"
    alone.mkdir()
    (alone / "config.json").write_text((folder / "config.json").read_text())
    found = diff(alone, folder)
    assert not found.a.is_checkpoint
    assert found.b.is_checkpoint
    assert found.a.num_parameters is not None
    assert found.b.num_parameters is None


def test_what_differs_from_a_checkpoint(tmp_path: Path) -> None:
    """Shapes, dtypes and names; not what a file cannot say, nor what it does not hold."""
    module = stack()
    tensors = {name: value.clone() for name, value in module.state_dict().items()}
    tensors["head.weight"] = torch.zeros(5, 9)
    tensors["layers.0.bias"] = torch.zeros(8, dtype=torch.float16)
    tensors["more"] = tensors.pop("layers.1.weight")
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    module.head.requires_grad_(False)
    found = diff(module, tmp_path / "model.safetensors")
    assert changes_of(found) == (
        {"layers.1.weight"},
        {"more"},
        {"head.weight": ("shape",), "layers.0.bias": ("dtype",)},
    )
    assert "norm.unsaved" not in found.a.tensors


def test_a_tied_tensor_that_differs_is_counted_once() -> None:
    def tied(width: int) -> nn.Module:
        first, second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, second, nn.Linear(2, 2, bias=False))

    found = diff(tied(4), tied(8))
    assert found.headline == "different: 1 tensor of another shape; 1 alike"
    assert [change.name for change in found.changed] == ["0.weight", "1.weight"]
    assert "\ndifferent (1)\n" in str(found)
    assert diff(tied(4), nn.Sequential()).headline == "different: 2 tensors only in A"


def test_tied_tensors_are_in_a_file_under_either_name(tmp_path: Path) -> None:
    model = model_of("GPT2LMHeadModel")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    head, embedding = "lm_head.weight", "transformer.wte.weight"
    for left_out, other in ((head, embedding), (embedding, head)):
        kept = {name: value for name, value in state.items() if name != left_out}
        safetensors.save_file(kept, tmp_path / "one.safetensors")
        found = diff(model, tmp_path / "one.safetensors")
        assert found.is_equal
        assert found.notes == (f"B has the same tensor as {left_out} of A by another name",)
        assert other in kept
    kept = {name: value for name, value in state.items() if name not in (head, embedding)}
    safetensors.save_file(kept, tmp_path / "none.safetensors")
    assert changes_of(diff(model, tmp_path / "none.safetensors"))[0] == {head, embedding}


def test_checkpoints_that_transformers_converts(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=2)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    found = diff(model, tmp_path)
    assert not found.is_equal
    assert "transformers renames, merges or splits" in found.notes[-1]
    assert diff(model, model).notes == ()


# Targets.


def test_overrides_are_for_configs(saved: Any) -> None:
    model, folder = saved("LlamaForCausalLM")
    changed = "num_hidden_layers=5"
    found = diff(str(folder / "config.json"), folder, overrides_a=[changed])
    assert len(found.only_a) == 2 * len([n for n in found.a.tensors if "layers.0." in n])
    for source in (model, folder):
        with pytest.raises(TargetError, match="'num_hidden_layers=5' changes nothing"):
            diff(stack(), source, overrides_b=[changed])


@pytest.mark.parametrize("dtype", ["bf16", torch.bfloat16])
def test_a_target_in_another_dtype(dtype: Any) -> None:
    text, small = "transformers:ViTModel", ["num_hidden_layers=2"]
    found = diff(text, text, overrides_a=small, overrides_b=small, dtype=dtype)
    assert found.is_equal
    assert {tensor.dtype for tensor in found.a.tensors.values()} == {"bfloat16"}

"""Two models or checkpoints compared: what is said to differ is what was changed."""

from __future__ import annotations

import json
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchfake import deferred_init, fake_like, fake_mode, is_deferred
from torchfake.errors import CheckpointError, TargetError
from torchfake.inspect.diff import Diff, diff
from torchfake.inspect.folding import folded
from torchfake.inspect.renames import renamed

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 60,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 1},
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 60},  # tied
    "BertForMaskedLM": SMALL,  # tied, with buffers that are not saved
    "T5ForConditionalGeneration": {
        "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60,
    },
    "ConvNextModel": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ResNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},  # buffers
}  # fmt: skip


def model_of(name: str, **changes: Any) -> Any:
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**{**MODELS[name], **changes}))


def stack(width: int = 8, depth: int = 3, *, bias: bool = True) -> nn.Module:
    module = nn.Module()
    module.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))
    module.norm = nn.BatchNorm1d(width)
    module.norm.register_buffer("unsaved", torch.zeros(3), persistent=False)
    module.head = nn.Linear(width, 5)
    return module


def changes_of(found: Diff) -> tuple[set[str], set[str], dict[str, tuple[str, ...]]]:
    return (
        {tensor.name for tensor in found.only_a},
        {tensor.name for tensor in found.only_b},
        {change.name: change.what for change in found.changed},
    )


# Modules.


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_equal_to_its_twins(name: str) -> None:
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
        assert found.num_equal == len(found.a.tensors)
    assert is_deferred(deferred)


def _shape(module: nn.Module) -> None:
    module.head.weight = nn.Parameter(torch.zeros(5, 9))


def _dtype(module: nn.Module) -> None:
    module.layers[1].bfloat16()


def _frozen(module: nn.Module) -> None:
    module.head.requires_grad_(False)


def _less(module: nn.Module) -> None:
    module.layers[2].register_parameter("bias", None)


def _more(module: nn.Module) -> None:
    module.head.register_buffer("scale", torch.ones(()))


def _kind(module: nn.Module) -> None:
    mean = module.norm.running_mean
    del module.norm.running_mean
    module.norm.running_mean = nn.Parameter(mean)


def _unsaved(module: nn.Module) -> None:
    module.norm._non_persistent_buffers_set.add("running_var")


def _tied(module: nn.Module) -> None:
    module.layers[2].weight = module.layers[0].weight


EDITS = {
    _shape: (set(), {"head.weight": ("shape",)}),
    _dtype: (set(), {"layers.1.weight": ("dtype",), "layers.1.bias": ("dtype",)}),
    _frozen: (set(), {"head.weight": ("trainable",), "head.bias": ("trainable",)}),
    _less: ({"layers.2.bias"}, {}),
    _more: ({"head.scale"}, {}),
    _kind: (set(), {"norm.running_mean": ("kind", "trainable")}),
    _unsaved: (set(), {"norm.running_var": ("kind",)}),
    _tied: (set(), {"layers.2.weight": ("tied_to",)}),
}


@given(st.sets(st.sampled_from(list(EDITS))))
def test_what_was_changed_is_what_differs(edits: set[Any]) -> None:
    """Any of the edits together, either way round."""
    a, b = stack(), stack()
    changed: dict[str, tuple[str, ...]] = {}
    for edit in (edit for edit in EDITS if edit in edits):
        edit(b)
        for name, what in EDITS[edit][1].items():
            changed[name] = (*changed.get(name, ()), *what)
    only_a = set(EDITS[_less][0]) if _less in edits else set()
    only_b = set(EDITS[_more][0]) if _more in edits else set()
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


def resident_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


def test_only_the_header_of_a_file_is_read(tmp_path: Path) -> None:
    """A file of 4 GB, most of which is not even on the disk."""
    size = 4 << 30
    header = {"weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    before = resident_bytes()
    found = diff(path, path)
    assert resident_bytes() - before < 50 << 20
    assert found.is_equal
    assert found.a.size_bytes == size


def test_a_dtype_that_torch_does_not_have(tmp_path: Path) -> None:
    header = {"weight": {"dtype": "F4", "shape": [4, 2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with fake_mode():
        module = nn.Linear(2, 4, bias=False)
    found = diff(module, path)
    assert found.is_equal
    assert "weight is F4, which torch does not have" in found.notes[0]
    assert found.b.tensors["weight"].dtype is None


# What cannot be compared.


class Code:
    """What a pickle runs when it is read by a reader that trusts it."""

    def __reduce__(self) -> Any:
        return print, ("run",)


def _truncated(folder: Path) -> Path:
    safetensors.save_file({"w": torch.zeros(100)}, folder / "cut.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "cut.safetensors").read_bytes()[:-7])
    return folder / "cut.safetensors"


def _huge_header(folder: Path) -> Path:
    (folder / "header.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    return folder / "header.safetensors"


def _text(folder: Path) -> Path:
    (folder / "text.pt").write_text("not a checkpoint")
    return folder / "text.pt"


def _code(folder: Path) -> Path:
    (folder / "code.bin").write_bytes(pickle.dumps(Code()))
    return folder / "code.bin"


def _number(folder: Path) -> Path:
    torch.save(3, folder / "number.pth")
    return folder / "number.pth"


def _shard_missing(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    return folder


def _outside(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../w.safetensors"}}))
    return folder


def _empty(folder: Path) -> Path:
    return folder


def _missing(folder: Path) -> Path:
    return folder / "missing.safetensors"


@pytest.mark.parametrize(
    "make",
    [_truncated, _huge_header, _text, _code, _number, _shard_missing, _outside, _empty, _missing],
)
def test_checkpoints_that_cannot_be_read(make: Any, tmp_path: Path, capsys: Any) -> None:
    path = make(tmp_path)
    for a, b in ((path, stack()), (stack(), str(path))):
        with pytest.raises(CheckpointError) as caught:
            diff(a, b)
        assert len(str(caught.value).splitlines()) == 1
        assert path.name in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("transformers:NoSuchModel", "has no 'NoSuchModel'"),
        ("LlamaForCausalLM", "did you mean transformers:LlamaForCausalLM?"),
        ("/no/such/folder", "no such folder"),
        (3, "the path of a checkpoint is needed, not int"),
    ],
)
def test_what_names_nothing(source: Any, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        diff(stack(), source)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


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


# Text.


def test_text() -> None:
    assert (
        diff(stack(), stack(16, 5, bias=False)).plain()
        == """\
A  Module  297 values    1,192 bytes  14 tensors
B  Module  1,433 values  5,736 bytes  13 tensors

only in A (3)
  layers.0-2.bias  [8] float32

only in B (2)
  layers.3-4.weight  [16, 16] float32

different (8)
  head.weight        [5, 8] -> [5, 16]
  layers.0-2.weight  [8, 8] -> [16, 16]
  norm.bias          [8] -> [16]
  norm.running_mean  [8] -> [16]
  norm.running_var   [8] -> [16]
  norm.weight        [8] -> [16]

alike (3)"""
    )


def test_text_of_each_kind_of_difference() -> None:
    a, b = stack(), stack()
    for edit in (_shape, _dtype, _frozen, _more, _kind, _unsaved, _tied):
        edit(b)
    text = diff(a, b).plain()
    for line in (
        "head.scale  [] float32 buffer",
        "head.weight        [5, 8] -> [5, 9], trainable -> frozen",
        "layers.1.bias      float32 -> bfloat16",
        "layers.2.weight    not tied -> tied to layers.0.weight",
        "norm.running_mean  buffer -> parameter, frozen -> trainable",
        "norm.running_var   buffer -> unsaved buffer",
    ):
        assert f"\n  {line}\n" in text


def test_text_is_ascii_and_a_dict_is_json() -> None:
    module = nn.ModuleDict({"größe": nn.Linear(2, 2)})
    found = diff(module, nn.Linear(2, 2))
    assert found.plain().isascii()
    assert repr(found) == str(found) == found.plain()
    again = json.loads(json.dumps(found.to_dict()))
    assert again["only_a"][0]["name"] == "größe.weight"
    assert again["is_equal"] is False


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("BertModel", "BertForMaskedLM", "are in B behind 'bert.', alike but for that"),
        ("BertForMaskedLM", "BertModel", "that only B has are in A behind 'bert.'"),
        ("BertForMaskedLM", "RobertaForMaskedLM", "with 'roberta.' for 'bert.', alike"),
    ],
)
def test_what_was_renamed(a: str, b: str, said: str) -> None:
    small = {**SMALL, "max_position_embeddings": 40}
    found = []
    with fake_mode():
        for name in (a, b):
            model_class = getattr(transformers, name)
            found.append(model_class(model_class.config_class(**small)))
    assert any(said in note for note in diff(*found).notes)


def test_what_was_renamed_and_is_not_alike() -> None:
    inner, outer = stack(8), nn.ModuleDict({"model": stack(16)})
    (note,) = diff(inner, outer).notes
    assert note == "all 14 names that only A has are in B behind 'model.', 11 of them not alike"
    assert diff(stack(), nn.LSTM(2, 2)).notes == ()


def test_checkpoints_that_transformers_converts(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=2)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    found = diff(model, tmp_path)
    assert not found.is_equal
    assert "transformers renames, merges or splits" in found.notes[-1]
    assert diff(model, model).notes == ()


NAMES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.sampled_from("xy"), st.integers(0, 3)),
    unique=True,
    max_size=60,
)


def _ranges(text: str) -> list[str]:
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += map(str, range(int(first), int(last or first) + 1))
    return found


@given(NAMES)
def test_folded_names_are_those_that_were_folded(keys: list[tuple[str, int, str, int]]) -> None:
    names = [".".join(map(str, key)) for key in keys]
    lines = folded(names)
    assert sum(count for _, count in lines) == len(names)
    if any("..." in text for text, _ in lines):
        return  # said in short
    unfolded = [
        f"{a}.{i}.{x}.{j}"
        for text, _ in lines
        for a, first, x, second in [text.split(".")]
        for i in _ranges(first)
        for j in _ranges(second)
    ]
    assert sorted(unfolded) == sorted(names)


def test_names_with_nothing_in_common_are_not_renamed() -> None:
    assert renamed([], []) is None
    assert renamed(["a.w"], ["b.w"]) is None
    assert renamed(["a.w", "a.b"], ["b.w", "b.b"]) == ("a.", "b.", (("a.w", "b.w"), ("a.b", "b.b")))

"""Deferred modules to files and from files: the files of eager, the values of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from oracle import assert_same, bits
from safetensors import safe_open
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from tiny_pieces import tiny_pieces
from torchfake import (
    _chains,
    _save,
    deferred_init,
    dematerialize_module,
    errors,
    fake_mode,
    is_deferred,
    materialize_module,
    materialize_tensor,
    save_materialized,
)
from torchfake._safetensors import DTYPES, INCOMPLETE, Writer
from torchfake.checkpoint import digest_of

SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 200,
    "num_attention_heads": 4,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=4)),
    "bert, tied": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "mixtral, converted": lambda: MixtralForCausalLM(
        MixtralConfig(**SMALL, num_key_value_heads=4, num_local_experts=3)
    ),
    "t5, tied thrice": lambda: T5ForConditionalGeneration(
        T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=200)
    ),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    yield
    if was_enabled:
        logging.enable_progress_bar()


@pytest.fixture(params=["whole", "pieces"])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "whole":
        yield
    else:
        with tiny_pieces():
            yield


class Plain(nn.Module):
    """Ties, buffers of both kinds, an integer, an empty tensor, a view, a draw nobody counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.second = nn.Linear(20, 30)
        self.second.weight = self.first.weight
        self.short = nn.Parameter(torch.randn(33, 9).to(torch.bfloat16))
        self.turned = nn.Parameter(torch.rand(7, 40).t())
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(30, 20)))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("constant", torch.tensor(3.5, dtype=torch.float64))
        self.register_buffer("left_out", torch.arange(4.0), persistent=False)
        both = torch.randn(8, 10)
        self.register_buffer("upper", both[:4])
        self.register_buffer("lower", both[4:])


def seeded(build: Any, *, deferred: bool, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return deferred_init(build) if deferred else build()


def state_bits(module: nn.Module) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in module.state_dict().items()}


def values_of(folder: Path) -> dict[str, bytes]:
    found = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in safetensors.torch.load_file(file).items():
            found[name] = bits(tensor)
    return found


# To files.


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_shard_size", ["20KB", "5GB"])
@pytest.mark.usefixtures("engine")
def test_as_save_pretrained(name: str, max_shard_size: str, tmp_path: Path) -> None:
    build, ours, theirs = MODELS[name], tmp_path / "ours", tmp_path / "theirs"
    eager = seeded(build, deferred=False)
    eager.save_pretrained(theirs, max_shard_size=max_shard_size)
    module = seeded(build, deferred=True)
    save_materialized(module, ours, max_shard_size=max_shard_size)
    assert all(is_deferred(p) for p in module.parameters())
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    for path in theirs.glob("*.json"):
        assert (ours / path.name).read_text() == path.read_text()
    for path in theirs.glob("*.safetensors"):
        assert tensors_in(ours / path.name) == tensors_in(path)
    loaded = type(eager).from_pretrained(ours).state_dict()
    assert {k: bits(t) for k, t in loaded.items()} == state_bits(eager)


def tensors_in(path: Path) -> tuple[Any, bytes]:
    """The header but for its metadata, and all bytes behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__")["format"] == "pt"
    return list(header.items()), data[8 + size :]


@pytest.mark.usefixtures("engine")
def test_plain_modules(tmp_path: Path) -> None:
    eager, module = seeded(Plain, deferred=False), seeded(Plain, deferred=True)
    save_materialized(module, tmp_path)
    state = eager.state_dict()
    assert "left_out" not in state
    del state["second.weight"]
    assert values_of(tmp_path) == {name: bits(t) for name, t in state.items()}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["second.weight"] == "first.weight"
    materialize_module(module)
    assert_same(eager, module)


@pytest.mark.parametrize("max_shard_size", [1000, "3KB"])
def test_shards_of_plain_modules(tmp_path: Path, max_shard_size: Any) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=max_shard_size)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in safetensors.torch.load_file(tmp_path / file)
    assert len(set(index["weight_map"].values())) > 1
    loaded = materialize_module(deferred_init(Plain), checkpoint=tmp_path)
    assert_same(seeded(Plain, deferred=False), loaded)


def test_real_and_half_real_modules(tmp_path: Path) -> None:
    eager, module = seeded(Plain, deferred=False), seeded(Plain, deferred=True)
    materialize_module(module.first)
    save_materialized(module, tmp_path / "half")
    save_materialized(eager, tmp_path / "real")
    assert values_of(tmp_path / "half") == values_of(tmp_path / "real")


def test_the_bytes_of_the_library(tmp_path: Path) -> None:
    """Every dtype it has, in its order."""
    torch.manual_seed(0)
    tensors = {}
    for i, dtype in enumerate(DTYPES):
        for j, size in enumerate([(3, 5), (), (0, 2)]):
            raw = torch.randint(0, 2, (*size, dtype.itemsize), dtype=torch.uint8)
            tensors[f"{(7 * i) % 5}.{i}.{j}"] = raw.view(dtype).reshape(size)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    with Writer(tmp_path / "ours", tensors, {"format": "pt"}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, 0, tensor)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_every_dtype_of_the_library_is_known() -> None:
    assert set(DTYPES) >= set(safetensors.torch._TYPES.values()) - {torch.float4_e2m1fn_x2}


def test_what_is_drawn_is_never_there_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over = []
    monkeypatch.setattr(_save._File, "_take", lambda *args: handed_over.append(args))
    with tiny_pieces():
        save_materialized(deferred_init(nn.Linear, 50, 50), tmp_path)
    assert not handed_over


# A call that was interrupted.


def test_a_second_call_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = seeded(Plain, deferred=True)
    save_materialized(module, tmp_path, max_shard_size=1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    save_materialized(module, tmp_path, max_shard_size=1000)
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=1000)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("name", ["llama", None])
def test_it_goes_on_from_the_last_whole_file(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = MODELS[name] if name else Plain
    module = seeded(build, deferred=True)
    original, written = Writer.write, []

    def write(self: Any, tensor: str, start: int, values: Any) -> None:
        written.append(tensor)
        if len(written) == 9:
            raise KeyboardInterrupt
        original(self, tensor, start, values)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", write)
        with pytest.raises(KeyboardInterrupt):
            save_materialized(module, tmp_path, max_shard_size="3KB")
    files = set(tmp_path.glob("*.safetensors"))
    assert files
    assert not list(tmp_path.glob("*.index.json"))
    assert not list(tmp_path.glob(f"*{INCOMPLETE}"))
    first = {path: path.stat().st_mtime_ns for path in files}
    save_materialized(module, tmp_path, max_shard_size="3KB")
    assert {path: path.stat().st_mtime_ns for path in files} == first
    save_materialized(seeded(build, deferred=False), tmp_path / "eager")
    assert values_of(tmp_path) == values_of(tmp_path / "eager")


def test_a_killed_run(tmp_path: Path) -> None:
    """No file that looks complete; then it is continued."""
    code = textwrap.dedent(f"""
        import time, torch, torchfake
        from torchfake._safetensors import Writer
        original = Writer.write
        def slowly(*args):
            original(*args)
            time.sleep(0.05)
        Writer.write = slowly
        torch.manual_seed(0)
        m = torchfake.deferred_init(
            lambda: torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(60)))
        )
        print("begun", flush=True)
        torchfake.save_materialized(m, {str(tmp_path)!r}, max_shard_size="8KB")
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while not list(tmp_path.glob("*.safetensors")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "model.safetensors.index.json").exists()
    for path in tmp_path.glob("*.safetensors"):
        safetensors.torch.load_file(path)
    with pytest.raises(errors.CheckpointError, match="has none of"):
        materialize_module(deferred_init(nn.Linear, 3, 3), checkpoint=tmp_path)

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(30, 30) for _ in range(60)))

    save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size="8KB")
    eager = seeded(build, deferred=False)
    assert values_of(tmp_path) == {name: bits(t) for name, t in eager.state_dict().items()}


def test_another_model_is_not_written_over(tmp_path: Path) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path)
    with pytest.raises(errors.CheckpointError, match="is of another model, of another seed"):
        save_materialized(seeded(Plain, deferred=True, seed=1), tmp_path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(errors.CheckpointError, match="_extra_state is a dict"):
        save_materialized(deferred_init(Extra, 3, 3), tmp_path)
    with pytest.raises(errors.CheckpointError, match=r"^0 is torch.complex128 and torch.strided"):
        save_materialized(nn.ParameterList([torch.ones(2, dtype=torch.complex128)]), tmp_path)
    with fake_mode():
        fake = nn.Linear(3, 3)
    with pytest.raises(errors.NotDeferredError, match=r"^weight is fake and was not recorded"):
        save_materialized(fake, tmp_path)
    with pytest.raises(errors.NotDeferredError, match="takes a module, not str"):
        save_materialized("model", tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="is a file: give a directory"):
        save_materialized(nn.Linear(3, 3), tmp_path / "file")


def test_the_bar_counts_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    original = _save.write_file

    def write_file(*args: Any, advance: Any = None, **kwargs: Any) -> None:
        original(*args, advance=told.append, **kwargs)

    monkeypatch.setattr("torchfake.checkpoint.write_file", write_file)
    module = deferred_init(nn.Linear, 50, 50)
    with tiny_pieces():
        save_materialized(module, tmp_path)
    assert sum(told) == 4 * (50 * 50 + 50)


# Digests.


def test_a_digest_is_of_what_would_be_made() -> None:
    def digest(build: Any, seed: int = 0) -> str:
        module = seeded(build, deferred=True, seed=seed)
        return digest_of(module.state_dict())

    assert digest(Plain) == digest(Plain)
    assert digest(Plain) != digest(Plain, seed=1)
    assert digest(lambda: Plain().half()) != digest(Plain)
    scaled = [lambda s=s: nn.ParameterList([torch.rand(3) * s]) for s in (1.0, 2.0)]
    assert digest(scaled[0]) != digest(scaled[1])
    tables = [torch.arange(3.0), torch.arange(3.0) + 1]
    copied = [lambda t=t: nn.ParameterList([torch.ones(3) + t]) for t in tables]
    assert digest(copied[0]) != digest(copied[1])


def test_a_digest_does_not_depend_on_what_was_done_meanwhile() -> None:
    module = seeded(Plain, deferred=True)
    before = digest_of(module.state_dict())
    twin = seeded(Plain, deferred=True)
    materialize_module(twin)
    assert digest_of(module.state_dict()) == before
    module.norm(torch.ones(2, 8))  # reads
    again = seeded(Plain, deferred=True)
    materialize_module(again.second)
    names = {n: t for n, t in again.state_dict().items() if is_deferred(t)}
    other = {n: t for n, t in seeded(Plain, deferred=True).state_dict().items() if n in names}
    assert digest_of(names) == digest_of(other)


# From files.


def saved(state: dict[str, torch.Tensor], folder: Path, kind: str) -> Any:
    if kind == "dict":
        return state
    if kind == "safetensors":
        path = folder / "some.safetensors"
        safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, path)
        return path
    path = folder / "some.pt"
    torch.save(
        {"state_dict": state} if kind == "nested" else state, path,
        _use_new_zipfile_serialization=kind != "old",
    )  # fmt: skip
    return str(path)


KINDS = ["dict", "safetensors", "pt", "nested", "old"]


def build_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("engine")
def test_what_it_lacks_is_replayed(kind: str, tmp_path: Path) -> None:
    eager = seeded(build_linear, deferred=False)
    other = seeded(build_linear, deferred=False, seed=5)
    state = {k: v.detach().clone() for k, v in other.state_dict().items() if k != "2.weight"}
    module = seeded(build_linear, deferred=True)
    after = torch.get_rng_state()
    assert materialize_module(module, checkpoint=saved(state, tmp_path, kind)) is module
    assert torch.equal(torch.get_rng_state(), after)
    with torch.no_grad():
        other[2].weight.copy_(eager[2].weight)
    assert_same(other, module)


@pytest.mark.parametrize("kind", KINDS)
def test_into_the_module_s_dtypes(kind: str, tmp_path: Path) -> None:
    other = seeded(build_linear, deferred=False, seed=5)
    state = {k: v.detach() for k, v in other.state_dict().items()}
    module = seeded(build_linear, deferred=True).to(torch.bfloat16)
    materialize_module(module, checkpoint=saved(state, tmp_path, kind))
    assert_same(other.to(torch.bfloat16), module)
    again = seeded(build_linear, deferred=True)
    materialize_module(again, checkpoint=saved(state, tmp_path, kind), dtype=torch.bfloat16)
    assert_same(other, again)


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name: str, tmp_path: Path) -> None:
    eager = seeded(MODELS[name], deferred=False, seed=5)
    eager.save_pretrained(tmp_path, max_shard_size="20KB")
    module = materialize_module(seeded(MODELS[name], deferred=True), checkpoint=tmp_path)
    assert_same(eager, module)


def test_a_part_of_a_module(tmp_path: Path) -> None:
    eager = seeded(build_linear, deferred=False)
    other = seeded(build_linear, deferred=False, seed=5)
    module = seeded(build_linear, deferred=True)
    materialize_module(
        module, check_fn=lambda m: isinstance(m, nn.BatchNorm1d) or m is module[0],
        checkpoint=other.state_dict(),
    )  # fmt: skip
    assert bits(module[0].weight) == bits(other[0].weight)
    assert is_deferred(module[2])
    materialize_module(module)
    assert bits(module[2].weight) == bits(eager[2].weight)


def test_real_tensors_are_written_too() -> None:
    other = seeded(build_linear, deferred=False, seed=5)
    module = seeded(build_linear, deferred=True)
    materialize_module(module[0])
    weight = module[0].weight
    materialize_module(module, checkpoint=other.state_dict())
    assert module[0].weight is weight
    assert_same(other, module)


def test_buffers_that_are_not_saved_may_be_there() -> None:
    state = {"left_out": torch.zeros(4), "first.bias": torch.zeros(30)}
    module = materialize_module(seeded(Plain, deferred=True), checkpoint=state)
    assert module.left_out.tolist() == [0, 1, 2, 3]


def complaint(module: nn.Module, checkpoint: Any, **how: Any) -> str:
    """The error; nothing has changed then."""
    version = [p._fake_storage.recorded.contents for p in module.parameters()]  # type: ignore[attr-defined]
    with pytest.raises(errors.CheckpointError) as caught:
        materialize_module(module, checkpoint=checkpoint, **how)
    assert all(is_deferred(p) for p in module.parameters())
    assert version == [p._fake_storage.recorded.contents for p in module.parameters()]  # type: ignore[attr-defined]
    return str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    state = build_linear().state_dict()
    state = {**state, "0.weight": torch.ones(3), "2.bias": torch.ones(6), "a": torch.ones(1)}
    module = seeded(build_linear, deferred=True)
    assert complaint(module, {**state, "b": torch.ones(1)}) == (
        "the module does not have a, b of the checkpoint; these do not fit: 0.weight is [3] there "
        "and [30, 20] here, 2.bias is [6] there and [5] here. strict=False takes what fits. "
        "Nothing was changed"
    )
    with pytest.warns(UserWarning, match=r"does not have a of the checkpoint.*: left out"):
        materialize_module(module, checkpoint=state, strict=False)
    eager = seeded(build_linear, deferred=False)
    assert bits(module[0].weight) == bits(eager[0].weight)
    assert bits(module[2].weight) == bits(state["2.weight"])


def test_a_prefix_is_guessed_at() -> None:
    state = {f"model.{k}": v for k, v in build_linear().state_dict().items()}
    assert "no name in common (is there a prefix?)" in complaint(deferred_init(build_linear), state)


def truncated(path: Path, by: int = 100) -> Path:
    path.write_bytes(path.read_bytes()[:-by])
    return path


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/owned",)


def test_damaged_files(tmp_path: Path) -> None:
    module = deferred_init(build_linear)
    state = build_linear().state_dict()
    cut = truncated(saved(state, tmp_path, "safetensors"))
    assert "some.safetensors cannot be read, for it is damaged" in complaint(module, cut)
    cut = truncated(Path(saved(state, tmp_path, "pt")))
    assert "some.pt cannot be read, for it is damaged" in complaint(module, cut)
    (tmp_path / "huge.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert "cannot be read" in complaint(module, tmp_path / "huge.safetensors")
    torch.save({"0.weight": Hostile()}, tmp_path / "hostile.pt")
    assert "cannot be read" in complaint(module, tmp_path / "hostile.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "holds a list, not a state dict" in complaint(module, tmp_path / "list.pt")
    assert "has no tensors at its top level" in complaint(module, {"net": {"a": torch.ones(1)}})
    assert "is a directory, a file or a state dict, not a list" in complaint(module, [1])
    assert "does not exist" in complaint(module, tmp_path / "nothing")
    with fake_mode():
        fake = torch.ones(30, 20)
    assert "0.weight has no values" in complaint(module, {"0.weight": fake})


def test_hostile_indices(tmp_path: Path) -> None:
    module = deferred_init(build_linear)
    index = tmp_path / "model.safetensors.index.json"
    saved(build_linear().state_dict(), tmp_path, "safetensors")

    def says(content: Any) -> str:
        index.write_text(content if isinstance(content, str) else json.dumps(content))
        return complaint(module, tmp_path)

    assert "cannot be read" in says("{")
    assert "cannot be read" in says([])
    assert "cannot be read" in says({"weight_map": 3})
    assert "which is not beside it" in says({"weight_map": {"0.weight": "../some.safetensors"}})
    assert "which is not beside it" in says({"weight_map": {"0.weight": "/etc/passwd"}})
    assert "which is not there" in says({"weight_map": {"0.weight": "other.safetensors"}})
    assert "which does not have it" in says({"weight_map": {"1.what": "some.safetensors"}})
    index.write_text(json.dumps({"weight_map": {"0.weight": "some.safetensors"}}))
    materialize_module(module, checkpoint=index)


def test_what_stands_in_the_way_comes_before_the_checkpoint() -> None:
    module = deferred_init(nn.Linear, 3, 4)
    output = module(torch.ones(1, 3))
    contents = module.weight._fake_storage.recorded.contents  # type: ignore[attr-defined]
    with pytest.raises(errors.MaterializeError, match="graph of a forward pass"):
        materialize_module(module, checkpoint=nn.Linear(3, 4).state_dict())
    assert module.weight._fake_storage.recorded.contents is contents  # type: ignore[attr-defined]
    del output


def test_blocks_are_not_larger_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    original = Writer.write

    def write(self: Any, name: str, start: int, values: torch.Tensor) -> None:
        lengths.append(values.numel())
        original(self, name, start, values)

    monkeypatch.setattr(Writer, "write", write)
    with tiny_pieces():
        save_materialized(deferred_init(nn.Linear, 50, 50), tmp_path)
        assert max(lengths) <= 4 * (_chains.block_of(torch.get_num_threads()) + 32)


# What reviews have found.


class Masked(nn.Module):
    """A chain that begins before a lone step, and goes on after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(16, 16).mul_(0.5))
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(16, 16)))
        noise = torch.randn(16, 16)
        self.other = nn.Parameter(nn.init.trunc_normal_(torch.empty(16, 16)))
        with torch.no_grad():
            self.weight.mul_(self.mask)
            self.other.add_(noise)


@pytest.mark.usefixtures("engine")
def test_nothing_is_written_before_its_last_step(tmp_path: Path) -> None:
    save_materialized(seeded(Masked, deferred=True), tmp_path)
    assert values_of(tmp_path) == state_bits(seeded(Masked, deferred=False))


def digest(build: Any) -> str:
    return digest_of(seeded(build, deferred=True).state_dict())


def test_a_digest_is_of_uncounted_draws_before_it_too() -> None:
    def build(bound: float) -> Any:
        def model() -> nn.Module:
            torch.nn.init.trunc_normal_(torch.empty(1_000_100), a=-bound, b=bound)
            return nn.Linear(3, 3)

        return model

    assert digest(build(2.0)) == digest(build(2.0))
    assert draws_alike(build) or digest(build(2.0)) != digest(build(0.5))

    def logs(n: int) -> Any:
        def model() -> nn.Module:
            torch.empty(n).log_normal_()
            return nn.Linear(3, 3)

        return model

    assert digest(logs(1_000_001)) != digest(logs(1_000_003))


def draws_alike(build: Any) -> bool:
    first, second = (seeded(build(bound), deferred=False) for bound in (2.0, 0.5))
    return bits(first.weight) == bits(second.weight)


def test_a_digest_survives_what_lets_go_of_the_draws_before() -> None:
    def build() -> nn.Module:
        sizes = (1_000_001, 20, 30)
        return nn.ParameterList([torch.empty(n).log_normal_() for n in sizes])

    module, before = seeded(build, deferred=True), digest(build)
    materialize_module(seeded(build, deferred=True))
    assert digest(build) == before
    materialize_tensor(module[2].detach().clone())  # does the draws before it
    assert digest_of(module.state_dict()) == before


def test_odd_strides_and_conjugates(tmp_path: Path) -> None:
    def build() -> nn.Module:
        module = nn.Module()
        module.register_buffer("odd", torch.rand(2)[::2])
        module.register_buffer("turned", torch.rand(30, 20).t())
        module.register_buffer("conjugate", torch.randn(4, dtype=torch.complex64).conj())
        module.register_buffer("imaginary", torch.randn(4, dtype=torch.complex64).conj().imag)
        return module

    eager = seeded(build, deferred=False)
    expected = {
        name: bits(t.resolve_conj().resolve_neg()) for name, t in eager.state_dict().items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_save, "_AT_ONCE", 100)
        save_materialized(seeded(build, deferred=True), tmp_path / "deferred")
        save_materialized(eager, tmp_path / "real")
    assert values_of(tmp_path / "deferred") == values_of(tmp_path / "real") == expected
    plain = {n: t for n, t in eager.state_dict().items() if n != "conjugate"}
    assert digest_of({**plain, "conjugate": eager.conjugate.conj()}) != digest_of(
        eager.state_dict()
    )


@pytest.mark.parametrize("name", ["llama", None])
def test_another_size_in_the_same_directory(name: str | None, tmp_path: Path) -> None:
    build = MODELS[name] if name else Plain
    for size in ("3KB", "5GB", "6KB", "3KB"):
        save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size=size)
        loaded = materialize_module(deferred_init(build), checkpoint=tmp_path)
        assert state_bits(loaded) == state_bits(seeded(build, deferred=False))
        index = tmp_path / "model.safetensors.index.json"
        files = {path.name for path in tmp_path.glob("*.safetensors")}
        if index.exists():
            assert files == set(json.loads(index.read_text())["weight_map"].values())
        else:
            assert files == {"model.safetensors"}


def test_an_interrupted_change_of_size_does_not_look_complete(tmp_path: Path) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size="4KB")
    with pytest.raises(errors.CheckpointError, match="has none of"):
        materialize_module(deferred_init(Plain), checkpoint=tmp_path)


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3)}
    with (
        Writer(tmp_path / "x", tensors, {}) as first,
        Writer(tmp_path / "x", tensors, {}) as second,
    ):
        second.write("a", 0, torch.ones(3))
        first.write("a", 0, torch.ones(3))
    assert safetensors.torch.load_file(tmp_path / "x")["a"].tolist() == [1, 1, 1]


def test_threads_that_save_models_of_transformers(tmp_path: Path) -> None:
    modules = [seeded(MODELS["llama"], deferred=True, seed=i) for i in range(3)]
    eager = [seeded(MODELS["llama"], deferred=False, seed=i) for i in range(3)]
    threads = [
        threading.Thread(target=save_materialized, args=(m, tmp_path / str(i)))
        for i, m in enumerate(modules)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, module in enumerate(eager):
        assert values_of(tmp_path / str(i)) == state_bits(module)


def test_a_file_that_is_written_over_afterwards(tmp_path: Path) -> None:
    """Small values were copied: their file is not mapped any more."""
    path = saved(build_linear().state_dict(), tmp_path, "safetensors")
    module = materialize_module(deferred_init(build_linear), checkpoint=path)
    before = state_bits(module)
    path.write_bytes(b"x")
    dematerialize_module(module)
    assert state_bits(materialize_module(module)) == before


def test_what_does_not_fit_is_found_before_anything_is_written() -> None:
    module = seeded(build_linear, deferred=True)
    materialize_module(module[0])
    state = build_linear().state_dict()
    before = bits(module[0].weight)
    for value, said in {
        torch.ones(5, 30).to_sparse(): "2.weight is sparse, nested or quantized",
        torch.ones(
            5, 30, dtype=torch.complex64
        ): "2.weight is complex there and torch.float32 here",
        torch.nested.nested_tensor(
            [torch.ones(2)], layout=torch.jagged
        ): "2.weight is sparse, nested or quantized",
    }.items():
        with pytest.raises(errors.CheckpointError, match=said):
            materialize_module(module, checkpoint={**state, "2.weight": value})
    with pytest.raises(errors.CheckpointError, match="has the key 0, which is no name"):
        materialize_module(module, checkpoint={0: torch.ones(1)})
    with pytest.raises(errors.CheckpointError, match="no name in common"):
        materialize_module(module, checkpoint={})
    lazy = deferred_init(nn.LazyLinear, 3)
    with pytest.raises(errors.CheckpointError, match="weight has no shape here yet"):
        materialize_module(lazy, checkpoint={"weight": torch.ones(3, 3)})
    with torch.inference_mode():
        real = nn.Linear(3, 3)
    with pytest.raises(errors.CheckpointError, match="is a real inference tensor here"):
        materialize_module(real, checkpoint={"weight": torch.ones(3, 3)})
    assert bits(module[0].weight) == before


def test_the_warning_points_at_the_call() -> None:
    with pytest.warns(UserWarning, match="left out") as caught:
        materialize_module(
            deferred_init(nn.Linear, 3, 3), checkpoint={"a": torch.ones(1)}, strict=False
        )
    assert caught[0].filename == __file__


def test_left_over_files_of_processes_that_are_no_more(tmp_path: Path) -> None:
    dead = tmp_path / f"model.safetensors.{2**22 + 1}-01234567{INCOMPLETE}"
    alive = tmp_path / f"model.safetensors.{os.getpid()}-01234567{INCOMPLETE}"
    dead.touch()
    alive.touch()
    save_materialized(deferred_init(nn.Linear, 3, 3), tmp_path)
    assert not dead.exists() or os.name != "posix"
    assert alive.exists()

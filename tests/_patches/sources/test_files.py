"""Files that are opened in a mode: torch.load and safetensors."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_mode,
    dematerialize_module,
    fake_mode,
    graph,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from torchfake._graph.file_slices import FileSlice
from torchfake.errors import ReplayError

from ...quantized_tensor import Quantized

safetensors = pytest.importorskip("safetensors")

from safetensors.torch import load_file, load_model, save_file, save_model  # noqa: E402

VALUES = {
    "large": torch.arange(300_000.0),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "none": torch.empty(0, 3),
    "number": torch.tensor(3),
    "matrix": torch.arange(12).view(3, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "values.safetensors")
    save_file(VALUES, name)
    return name


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are read from files, each time."""
    seen: list[int] = []
    original = FileSlice._read_into

    def read_into(source: FileSlice, view: memoryview) -> None:
        seen.append(len(view))
        original(source, view)

    monkeypatch.setattr(FileSlice, "_read_into", read_into)
    return seen


def assert_like(made: torch.Tensor, real: torch.Tensor) -> None:
    """The metadata, the storage's size included."""
    layout = made.shape, made.stride(), made.storage_offset(), made.dtype
    assert layout == (real.shape, real.stride(), real.storage_offset(), real.dtype)
    assert made.untyped_storage().nbytes() == real.untyped_storage().nbytes()


# safetensors.


def sliced(path: str, device: str, backend: str) -> dict[str, torch.Tensor]:
    with safetensors.safe_open(path, "pt", device=device, backend=backend) as file:
        return {name: file.get_slice(name)[...] for name in file.keys()}  # noqa: SIM118


def one_by_one(path: str, device: str, backend: str) -> dict[str, torch.Tensor]:
    with safetensors.safe_open(path, "pt", device=device, backend=backend) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def all_at_once(path: str, device: str, backend: str) -> dict[str, torch.Tensor]:
    return load_file(path, device=device, backend=backend)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("load", [all_at_once, one_by_one, sliced])
def test_safetensors(path: str, load: Any, device: str, reads: list[int]) -> None:
    for backend in ("mmap", "pread"):
        with fake_mode(fake_cuda=True):
            fakes = load(path, device, backend)
        with deferred_mode(fake_cuda=True):
            deferred = load(path, device, backend)
        assert sum(reads) <= 8  # of the four numbers in half precision
        for name, real in VALUES.items():
            assert is_fake(fakes[name])
            assert is_deferred(deferred[name])
            for made in (fakes[name], deferred[name]):
                assert_like(made, real)
                assert made.device == torch.device(device)
            assert torch.equal(materialize_tensor(deferred[name], device="cpu"), real)
        reads.clear()


def test_the_values_of_small_tensors_are_read_when_asked_for(path: str, reads: list[int]) -> None:
    with fake_mode():
        loaded = load_file(path)
        twice = loaded["matrix"] * 2
        assert not reads
        assert twice.tolist() == (VALUES["matrix"] * 2).tolist()
        assert reads == [96]


def test_a_slice_of_a_file_is_all_that_is_read(path: str, reads: list[int]) -> None:
    with deferred_mode(), safetensors.safe_open(path, "pt") as file:
        part = file.get_slice("large")[1000:1064] * 2
    assert torch.equal(materialize_tensor(part), VALUES["large"][1000:1064] * 2)
    assert reads == [256 + 64]  # and what draws would be aligned to


def test_tensors_of_one_mapping_share_memory(path: str) -> None:
    for mode in (fake_mode, deferred_mode):
        with mode(), safetensors.safe_open(path, "pt") as file:
            one, other = file.get_tensor("matrix"), file.get_tensor("matrix")
            one.add_(1)
            assert other.tolist() == (VALUES["matrix"] + 1).tolist()


def test_a_model_is_loaded(tmp_path: Path) -> None:
    """Copied to its parameters; what they were before is not computed."""
    real = torch.nn.Linear(30, 40)
    name = str(tmp_path / "model.safetensors")
    save_model(real, name)
    with deferred_mode():
        model = torch.nn.Linear(30, 40)
        load_model(model, name)
    assert "uniform" not in str(graph(model.weight))
    materialize_module(model)
    assert torch.equal(model.weight, real.weight)
    dematerialize_module(model)
    assert torch.equal(materialize_module(model).bias, real.bias)


def test_a_file_that_changes_or_goes(path: str) -> None:
    """Before it is materialized: no values. After it: what was materialized stays."""
    with deferred_mode():
        first, second, third = (load_file(path)["large"] for _ in range(3))
    materialize_tensor(first)
    save_file({**VALUES, "large": VALUES["large"] + 1}, path)
    with pytest.raises(ReplayError, match=r"values\.safetensors was modified or replaced"):
        materialize_tensor(second)
    Path(path).unlink()
    with pytest.raises(ReplayError, match=r"values\.safetensors cannot be read"):
        materialize_tensor(third)
    assert is_deferred(second)
    assert is_deferred(third)
    assert torch.equal(first, VALUES["large"])


def test_outside_of_modes_files_are_read(path: str) -> None:
    with fake_mode():
        opened = safetensors.safe_open  # as a module does that is imported in a mode
    with opened(path, framework="pt", device="cpu") as file:
        assert torch.equal(file.get_tensor("matrix"), VALUES["matrix"])
    assert type(safetensors.safe_open) is type(safetensors.torch.safe_open) is type


# torch.load.


def saved_state() -> dict[str, Any]:
    weight = torch.arange(600.0).view(20, 30)
    return {"weight": weight, "part": weight[1:3], "more": (torch.arange(5), weight[:3].t(), "x")}


def tensors_in(state: dict[str, Any]) -> list[torch.Tensor]:
    return [state["weight"], state["part"], *state["more"][:2]]


LOCATIONS: list[Any] = [
    None, "cpu", torch.device("cpu"), {"cpu": "cuda:0"}, "cuda:0", lambda storage, _: storage,
    lambda storage, _: None, lambda storage, _: storage.cuda(0),
]  # fmt: skip
SOURCES: list[Callable[[str], Any]] = [str, Path, lambda name: io.BytesIO(Path(name).read_bytes())]


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "old format"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_torch_load(tmp_path: Path, mode: Any, is_zip: bool) -> None:
    """From each kind of source, to each kind of location, with ties."""
    name = str(tmp_path / "state.pt")
    torch.save(saved_state(), name, _use_new_zipfile_serialization=is_zip)
    for source, location in itertools.product(SOURCES, LOCATIONS):
        with mode(fake_cuda=True):
            state = torch.load(source(name), map_location=location)
        moved = "cuda" in str(location) or location is LOCATIONS[-1]
        assert {t.device.type for t in tensors_in(state)} == {"cuda" if moved else "cpu"}
        for made, real in zip(tensors_in(state), tensors_in(saved_state()), strict=True):
            assert is_fake(made)
            assert_like(made, real)
        if mode is deferred_mode:
            state["weight"].add_(1)
            expected = saved_state()
            expected["weight"].add_(1)
            for made, real in zip(tensors_in(state), tensors_in(expected), strict=True):
                assert torch.equal(materialize_tensor(made, device="cpu"), real)


def test_torch_load_from_an_open_file(tmp_path: Path, reads: list[int]) -> None:
    """It is the file that is read later; and mapped or not makes no difference."""
    name = tmp_path / "state.pt"
    torch.save(saved_state(), name)
    for options in ({}, {"mmap": True}, {"weights_only": False}):
        with name.open("rb") as file, deferred_mode():
            state = torch.load(name if "mmap" in options else file, **options)  # type: ignore[arg-type]
        assert not reads
        assert torch.equal(materialize_tensor(state["part"]), saved_state()["part"])
        reads.clear()


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    """Raises what it raises in eager."""
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"PK\3\4 and no more")
    for name in (damaged, tmp_path / "none.pt"):
        with pytest.raises(Exception) as eager:  # noqa: PT011
            torch.load(name)
        for mode in (fake_mode, deferred_mode):
            with mode(), pytest.raises(eager.type):
                torch.load(name)


def test_a_meta_location_is_meta(tmp_path: Path) -> None:
    torch.save(saved_state(), tmp_path / "state.pt")
    with deferred_mode():
        assert torch.load(tmp_path / "state.pt", map_location="meta")["weight"].is_meta


@pytest.mark.parametrize(
    "location", [None, "cpu", {"cpu": "meta"}, "meta", lambda storage, _: storage]
)
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_wrapper_subclasses_are_loaded_where_eager_loads_them(
    mode: Any, location: Any, tmp_path: Path
) -> None:
    weight = nn.Parameter(Quantized.of(torch.randn(3, 4)), requires_grad=False)
    torch.save({"weight": weight}, tmp_path / "file")

    def load() -> Any:
        try:
            loaded = torch.load(tmp_path / "file", map_location=location, weights_only=False)
        except RuntimeError as error:
            return str(error), None
        w = loaded["weight"]
        return (type(w), w.device, w.dtype, w.shape, w.codes.device, w.codes.dtype), w

    wanted, _ = load()
    with mode():
        found, fake = load()
    assert found == wanted
    if mode is deferred_mode and location in (None, "cpu"):
        assert is_deferred(fake.codes)
        real = materialize_tensor(fake.codes)
        assert torch.equal(real, weight.codes)  # type: ignore[attr-defined]

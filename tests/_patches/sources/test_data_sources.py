"""Data from files, arrays, buffers and other libraries becomes fakes inside a mode."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import all_fake, describe
from torchfake import deferred_mode, fake_mode, is_fake
from torchfake.errors import UnknownValueError

SOURCES: dict[str, Callable[[], Any]] = {
    "from_numpy": lambda: torch.from_numpy(np.arange(6.0).reshape(2, 3).T),
    "from_numpy_bool": lambda: torch.from_numpy(np.array([True, False])),
    "tensor": lambda: torch.tensor([[1.0, 2.0]], dtype=torch.float16),
    "tensor_grad": lambda: torch.tensor([1.0], requires_grad=True),
    "tensor_of_array": lambda: torch.tensor(np.float32([1, 2])),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "as_tensor_array": lambda: torch.as_tensor(np.int32([1, 2]), dtype=torch.float32),
    "as_tensor_slice": lambda: torch.as_tensor(np.arange(12.0).reshape(3, 4)[1:, ::2]),
    "as_tensor_slice_of_a_dtype": lambda: torch.as_tensor(
        data=np.arange(12.0).reshape(3, 4)[:, ::2], dtype=torch.float64
    ),
    "as_tensor_slice_of_another_dtype": lambda: torch.as_tensor(
        np.arange(12.0).reshape(3, 4)[:, ::2], dtype=torch.float32
    ),
    "asarray": lambda: torch.asarray([1, 2]),
    "asarray_slice": lambda: torch.asarray(np.arange(12.0).reshape(3, 4)[1:, ::2]),
    "asarray_array": lambda: torch.asarray(np.arange(3)),
    "asarray_bytes": lambda: torch.asarray(bytearray(8), dtype=torch.int32),
    "Tensor_of_size": lambda: torch.Tensor(3),
    "Tensor_of_sizes": lambda: torch.Tensor(2, 3),
    "Tensor_of_data": lambda: torch.Tensor([1, 2]),
    "Tensor_of_nothing": lambda: torch.Tensor(),
    "FloatTensor": lambda: torch.FloatTensor([1, 2]),
    "LongTensor": lambda: torch.LongTensor(2, 2),
    "BoolTensor": lambda: torch.BoolTensor([True]),
    "frombuffer": lambda: torch.frombuffer(bytearray(16), dtype=torch.float32, offset=4, count=2),
    "from_dlpack": lambda: torch.from_dlpack(np.arange(4)),
    "dlpack_of_fake": lambda: torch.from_dlpack(torch.arange(4)),
    "scalar_tensor": lambda: torch.scalar_tensor(2),
    "complex": lambda: torch.complex(torch.ones(2), torch.ones(2)),
    "parameter": lambda: nn.Parameter(torch.Tensor(2, 2)),
    "buffer": lambda: nn.Buffer(torch.ones(2)),
    "hann_window": lambda: torch.hann_window(4),
    "tril_indices": lambda: torch.tril_indices(3, 3),
    "cartesian": lambda: torch.cartesian_prod(torch.arange(2), torch.arange(3)),
    "vander": lambda: torch.vander(torch.arange(3)),
    "default_collate": lambda: torch.utils.data.default_collate(
        [{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}]
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str) -> None:
    expected = describe(SOURCES[name]())
    with fake_mode():
        result = SOURCES[name]()
    assert all_fake(result)
    assert describe(result) == expected


def checkpoint() -> dict[str, Any]:
    """Tensors of several kinds, two of which share memory, among other things."""
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    return {
        "base": base,
        "row": base[1],
        "turned": base.t(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "parameter": nn.Parameter(torch.zeros(2)),
        "empty": torch.zeros(0, 3),
        "nested": [torch.tensor(1), {"flag": True}],
        "step": 7,
    }


def saved(where: Any, legacy: bool = False) -> Any:
    torch.save(checkpoint(), where, _use_new_zipfile_serialization=not legacy)
    return where


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("kind", ["path", "open", "bytes"])
def test_load(tmp_path: Path, kind: str, legacy: bool, weights_only: bool) -> None:
    path = saved(tmp_path / "model.pt", legacy)
    sources: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "open": lambda: path.open("rb"),
        "bytes": lambda: io.BytesIO(path.read_bytes()),
    }

    def load() -> Any:
        source = sources[kind]()
        try:
            return torch.load(source, weights_only=weights_only)
        finally:
            if kind == "open":
                source.close()

    expected = describe(load())
    with fake_mode():
        result = load()
    assert describe(result) == expected
    assert all_fake(result)
    assert result["step"] == 7
    keys = [result[name].untyped_storage()._cdata for name in ("base", "row", "turned", "half")]
    assert len(set(keys)) == 2
    assert keys[0] == keys[1] == keys[2]
    assert result["row"].storage_offset() == 4
    if legacy:
        with pytest.raises(UnknownValueError):
            result["base"].tolist()
    else:
        assert result["base"].tolist() == checkpoint()["base"].tolist()


LOCATIONS: dict[str, Any] = {
    "cpu": "cpu",
    "cuda": "cuda",
    "cuda_1": torch.device("cuda", 1),
    "dict": {"cpu": "cuda:1"},
    "other_dict": {"cuda:0": "cpu"},
    "callable": lambda storage, location: storage,
    "callable_none": lambda storage, location: None,
}
_WHERE = {"cuda": "cuda:0", "cuda_1": "cuda:1", "dict": "cuda:1"}


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("name", LOCATIONS)
def test_map_location(tmp_path: Path, name: str, legacy: bool) -> None:
    path = saved(tmp_path / "model.pt", legacy)
    with fake_mode(fake_cuda=2):
        result = torch.load(path, map_location=LOCATIONS[name])
    assert all_fake(result)
    assert result["base"].device == torch.device(_WHERE.get(name, "cpu"))
    assert result["base"].untyped_storage()._cdata == result["row"].untyped_storage()._cdata


def test_a_file_saved_on_cuda(tmp_path: Path) -> None:
    """A fake on CUDA is saved with its device, as a checkpoint of a GPU machine is."""
    path = tmp_path / "model.pt"
    with fake_mode(fake_cuda=2):
        torch.save({"w": torch.ones(2, device="cuda:1")}, path)
        assert torch.load(path)["w"].device == torch.device("cuda", 1)


def test_load_on_meta_stays_meta(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.pt")
    with fake_mode():
        result = torch.load(path, map_location="meta")
    assert not is_fake(result["base"])
    assert result["base"].is_meta


def test_mmap(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.pt")
    with fake_mode():
        result = torch.load(path, mmap=True)
    assert all_fake(result)
    assert describe(result) == describe(checkpoint())


class CountingFile(io.FileIO):
    """A file that counts the bytes read from it."""

    num_bytes_read = 0

    def read(self, size: int | None = -1) -> Any:
        data = super().read(-1 if size is None else size)
        self.num_bytes_read += len(data or b"")
        return data

    def readinto(self, buffer: Any) -> Any:
        count = super().readinto(buffer)
        self.num_bytes_read += count or 0
        return count


@pytest.mark.parametrize("legacy", [True, False])
def test_the_bytes_of_large_tensors_are_not_read(tmp_path: Path, legacy: bool) -> None:
    path, num_bytes = tmp_path / "large.pt", 128 * 1024**2
    torch.save({"w": torch.zeros(num_bytes // 4)}, path, _use_new_zipfile_serialization=not legacy)
    with CountingFile(str(path)) as file, fake_mode():
        result = torch.load(file)
    assert result["w"].untyped_storage().nbytes() == num_bytes
    assert file.num_bytes_read < num_bytes // 100


def test_saving_real_tensors_loses_nothing(tmp_path: Path) -> None:
    real = checkpoint()
    for number, mode in enumerate((None, fake_mode(), fake_mode(fake_cuda=True))):
        path = tmp_path / f"{number}.pt"
        if mode is None:
            torch.save(real, path)
        else:
            with mode:
                torch.save(real, path)
        result = torch.load(path)
        for name in ("base", "row", "turned", "half", "parameter", "empty"):
            assert not is_fake(result[name])
            assert torch.equal(result[name], real[name])
            assert result[name].stride() == real[name].stride()
        keys = {result[name].untyped_storage()._cdata for name in ("base", "row", "turned")}
        assert len(keys) == 1


def tensors() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(12.0).view(3, 4),
        "half": torch.ones(2, 2, dtype=torch.bfloat16),
        "steps": torch.tensor(3),
        "mask": torch.tensor([True, False]),
    }


@pytest.fixture
def safetensors_file(tmp_path: Path) -> Path:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    library.save_file(tensors(), path)
    return path


def test_safetensors_load_file(safetensors_file: Path) -> None:
    from safetensors.torch import load, load_file

    with fake_mode():
        for result in (load_file(safetensors_file), load(safetensors_file.read_bytes())):
            assert all_fake(result)
            shapes = {name: (t.shape, t.stride(), t.dtype) for name, t in result.items()}
            assert shapes == {n: (t.shape, t.stride(), t.dtype) for n, t in tensors().items()}
            assert result["steps"].item() == 3


def test_safetensors_load_file_on_fake_cuda(safetensors_file: Path) -> None:
    """safetensors copies the file into pinned memory by its address, then to the device."""
    from safetensors.torch import load_file

    with fake_mode(fake_cuda=True):
        result = load_file(safetensors_file, device="cuda:0")
    assert all_fake(result)
    shapes = {name: (t.shape, t.stride(), t.dtype, t.is_cuda) for name, t in result.items()}
    assert shapes == {n: (t.shape, t.stride(), t.dtype, True) for n, t in tensors().items()}


def test_safe_open(safetensors_file: Path) -> None:
    from safetensors import safe_open

    def read() -> list[Tensor]:
        with safe_open(safetensors_file, framework="pt") as file:
            part = file.get_slice("weight")
            whole = [file.get_tensor(name) for name in sorted(file.keys())]
            return [*whole, part[1:], part[:, 2:], part[0:2, 1:3]]

    expected = [(t.shape, t.dtype, t.stride()) for t in read()]
    with fake_mode():
        result = read()
    assert all_fake(result)
    assert [(t.shape, t.dtype, t.stride()) for t in result] == expected


def test_state_dicts_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(2, 3).state_dict(), path)
    with fake_mode():
        layer = nn.Linear(2, 3)
        layer.load_state_dict(torch.load(path))
        layer.load_state_dict(torch.load(path), assign=True)
    assert all_fake(layer)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode, lambda: fake_mode(fake_cuda=1)])
def test_meta_as_the_device_of_a_context(mode: Any) -> None:
    sources = [[1.0], torch.ones(2), np.ones(2)]
    with mode(), torch.device("meta"):
        for bring in (torch.asarray, torch.as_tensor):
            assert all(bring(data).is_meta for data in sources)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_tensors_of_numbers_can_be_pinned(mode: Any) -> None:
    with mode(fake_cuda=1):
        made = torch.tensor([1.0, 2.0], requires_grad=True, pin_memory=True)
        assert made.is_pinned()
        assert made.is_leaf
        assert made.tolist() == [1, 2]
        assert torch.tensor([torch.tensor(3)], pin_memory=True).tolist() == [3]
        with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
            torch.tensor([1.0], device="cuda", pin_memory=True)
        with pytest.raises(RuntimeError, match="Can't pin tensor constructed from numpy"):
            torch.tensor(np.ones(2), pin_memory=True)


def test_asarray_on_the_device_of_a_tensor_is_that_tensor() -> None:
    with fake_mode(fake_cuda=2):
        for device in ("cpu", "cuda:0", "cuda:1"):
            x = torch.ones(2, device=device)
            for copy in (None, False):
                assert torch.asarray(x, device=device, copy=copy).data_ptr() == x.data_ptr()
            assert torch.asarray(x, device=device, copy=True).data_ptr() != x.data_ptr()
            assert torch.asarray(x, device="meta").is_meta


def test_asarray_names_the_devices_between_which_it_will_not_copy() -> None:
    with fake_mode(fake_cuda=2):
        x = torch.ones(2, device="cuda:0")
        with pytest.raises(ValueError, match="from device 'cuda:0' to 'cuda:1'"):
            torch.asarray(x, device="cuda:1", copy=False)
        assert torch.asarray(x, device="cuda:1").device == torch.device("cuda:1")

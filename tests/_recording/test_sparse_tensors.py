"""Sparse tensors of known values stay real in every mode, as buffers of modules too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import (
    check,
    deferred_init,
    deferred_mode,
    estimate,
    fake_like,
    fake_mode,
    is_fake,
    materialize_module,
    save_materialized,
    summary,
)
from torchfake.errors import UnsupportedOpError

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch's own notes, once a process

_MODES = pytest.mark.parametrize("mode", [fake_mode, deferred_mode])


class Decoder(torch.nn.Module):
    """Registers a sparse buffer, as openai-whisper's model does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        heads = torch.zeros(2, 6, dtype=torch.bool)
        heads[1:] = True
        self.register_buffer("heads", heads.to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = [(layer.item(), head.item()) for layer, head in self.heads.indices().T]
        return self.layer(x) * len(pairs)


def _from_parts() -> torch.Tensor:
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3.0, 4.0])
    return torch.sparse_coo_tensor(indices, values, (2, 3))


_SPARSE: dict[str, Callable[[], Any]] = {
    "to_sparse": lambda: torch.eye(3).to_sparse(),
    "to_sparse_csr": lambda: torch.eye(3).to_sparse_csr(),
    "sparse_coo_tensor": _from_parts,
    "sparse_csr_tensor": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0]),
    "sparse_csc_tensor": lambda: torch.sparse_csc_tensor(
        ccol_indices=[0, 1, 2], row_indices=[0, 1], values=torch.tensor([1.0, 2.0])
    ),
    "sparse_bsr_tensor": lambda: torch.sparse_bsr_tensor([0, 1, 2], [0, 1], [[[1.0]], [[2.0]]]),
    "sparse_compressed_tensor": lambda: torch.sparse_compressed_tensor(
        [0, 1, 2], [0, 1], [1.0, 2.0], layout=torch.sparse_csr
    ),
    "sparse_coo_tensor of lists": lambda: torch.sparse_coo_tensor([[0, 1], [1, 2]], [1, 2]),
    "sparse_coo_tensor without elements": lambda: torch.sparse_coo_tensor([[], []], [], (2, 2)),
    "empty with a layout": lambda: torch.zeros(2, 3, layout=torch.sparse_coo),
    "conversion": lambda: _from_parts().to(torch.float64).half().cpu(),
    "coalesce, clone": lambda: (_from_parts() + _from_parts().clone()).coalesce(),
    "transpose": lambda: _from_parts().t().coalesce(),
    "deep copy": lambda: copy.deepcopy(_from_parts()),
}
_STRIDED: dict[str, Callable[[], Any]] = {
    "to_dense": lambda: _from_parts().to_dense(),
    "product": lambda: torch.sparse.mm(_from_parts(), torch.ones(3, 2)),
    "sum": lambda: torch.sparse.sum(_from_parts()),
}


@_MODES
@pytest.mark.parametrize("name", _SPARSE)
def test_a_sparse_tensor_of_known_values_is_eagers(name: str, mode: Any) -> None:
    expected = _SPARSE[name]()
    with mode():
        made = _SPARSE[name]()
    assert not is_fake(made)
    assert made.layout == expected.layout
    assert torch.equal(made.to_dense(), expected.to_dense())
    assert made.dtype == expected.dtype


@_MODES
@pytest.mark.parametrize("name", _STRIDED)
def test_a_strided_result_is_a_fake_of_eagers_value(name: str, mode: Any) -> None:
    expected = _STRIDED[name]()
    with mode():
        made = _STRIDED[name]()
        assert is_fake(made)
        assert made.tolist() == expected.tolist()
        assert made.stride() == expected.stride()


@_MODES
def test_indices_are_read(mode: Any) -> None:
    with mode():
        sparse = _from_parts().coalesce()
        assert sparse.indices().tolist() == [[0, 1], [2, 0]]
        assert [(i.item(), j.item()) for i, j in sparse.indices().T] == [(0, 2), (1, 0)]


def test_unknown_values_make_no_sparse_tensor() -> None:
    with fake_mode():
        with pytest.raises(UnsupportedOpError, match="is not known"):
            torch.randn(300, 300).to_sparse()
        with pytest.raises(UnsupportedOpError, match="is not known"):
            torch.sparse.mm(_from_parts(), torch.randn(3, 100000))
        with pytest.raises(UnsupportedOpError, match="cannot be written"):
            torch.zeros(2, 3).add_(_from_parts())


def test_a_deferred_tensor_is_computed_for_it() -> None:
    torch.manual_seed(0)
    expected = torch.randn(30, 30).relu().to_sparse()
    torch.manual_seed(0)
    with deferred_mode():
        made = torch.randn(30, 30).relu().to_sparse()
    assert torch.equal(made.to_dense(), expected.to_dense())


@pytest.mark.parametrize("convert", ["half", "cpu", "float", "bfloat16"])
@_MODES
def test_a_module_with_a_sparse_buffer_is_built_and_converted(mode: Any, convert: str) -> None:
    with mode():
        module = getattr(Decoder(), convert)()
        assert module(module.layer.weight).shape == (8, 8)
    copied = copy.deepcopy(module)
    assert torch.equal(copied.heads.to_dense(), Decoder().heads.to_dense())


def test_a_module_with_a_sparse_buffer_moves_to_fake_cuda() -> None:
    with fake_mode(fake_cuda=True):
        module = Decoder().cuda()
        assert module(torch.ones(2, 8, device="cuda")).device.type == "cuda"


def test_a_module_with_a_sparse_buffer_is_materialized(tmp_path: Any) -> None:
    torch.manual_seed(0)
    expected = Decoder()
    torch.manual_seed(0)
    module = deferred_init(Decoder)
    save_materialized(module, tmp_path)
    materialize_module(module)
    assert torch.equal(module.layer.weight, expected.layer.weight)
    assert torch.equal(module.heads.to_dense(), expected.heads.to_dense())
    assert torch.equal(module(torch.ones(2, 8)), expected(torch.ones(2, 8)))


@pytest.mark.parametrize("make", [Decoder, lambda: deferred_init(Decoder)])
def test_a_module_with_a_sparse_buffer_is_inspected(make: Callable[[], Decoder]) -> None:
    x = torch.ones(2, 8)
    fake = fake_like(make())
    assert torch.equal(fake.heads.to_dense(), Decoder().heads.to_dense())
    assert "heads [2, 6] bool" in str(summary(make(), x))
    assert "[2, 8]" in str(check(make(), x))
    assert estimate(make(), x).peak_bytes > 0

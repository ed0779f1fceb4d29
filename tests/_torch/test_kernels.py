"""Decompositions and meta kernels of operators."""

from __future__ import annotations

import torch

from torchfake._torch import kernels

aten = torch.ops.aten


def test_decompositions() -> None:
    decomposition = kernels.decomposition_of(aten.addcmul.default)
    assert decomposition is not None
    assert decomposition(*torch.ones(3, 2)).tolist() == [2.0, 2.0]
    assert kernels.decomposition_of(aten.nonzero.default) is None


def test_memory_format() -> None:
    image = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    assert kernels.memory_format_of(image) == torch.channels_last
    assert kernels.memory_format_of(torch.empty(2)) == torch.contiguous_format


def test_meta_kernels_that_depend_on_the_device() -> None:
    kernel = kernels.meta_kernel_of(aten._linalg_svd.default, "cpu")
    assert kernel is not None
    matrix = torch.empty(3, 2, device="meta")
    assert [tuple(t.shape) for t in kernel(matrix)] == [(3, 2), (2,), (2, 2)]
    assert kernels.meta_kernel_of(aten.add.Tensor, "cpu") is None
    assert kernels.meta_kernel_of(aten.add.out, "cpu") is None


def test_is_decomposed_in_cpp() -> None:
    """Composite operators are; operators with kernels are not."""
    assert kernels.is_decomposed_in_cpp(aten.reshape.default)
    assert not kernels.is_decomposed_in_cpp(aten.view.default)


def test_is_noted_in_parts() -> None:
    """The base of ``mT`` is noted when it is decomposed, that of ``chunk`` as a whole."""
    assert kernels.is_noted_in_parts(torch.ops.aten.mT.default)
    assert not kernels.is_noted_in_parts(torch.ops.aten.chunk.default)
    assert not kernels.is_noted_in_parts(torch.ops.aten.slice.Tensor)

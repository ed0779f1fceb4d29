"""C++'s own functions compute the metadata that eager's kernels give."""

from __future__ import annotations

import torch

from torchfake._torch import cpp_metadata

aten = torch.ops.aten


def test_structured_operators() -> None:
    assert cpp_metadata.is_structured(aten.add.Tensor)
    assert not cpp_metadata.is_structured(aten.add_.Tensor)
    assert not cpp_metadata.is_structured(aten.convolution.default)


def test_the_metadata_of_structured_operators() -> None:
    """Strides of dims of length one included, which torch's Python computes otherwise."""
    one = torch.empty(2, 1, 3).permute(1, 2, 0)
    expected = aten.sum.dim_IntList(one, [0], True)
    found = cpp_metadata.begin_structured(aten.sum.dim_IntList, (one.to("meta"), [0], True), {})
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())


def test_operators_composed_below_autograd() -> None:
    assert cpp_metadata.is_composed_below_autograd(aten.ones_like.default)
    assert not cpp_metadata.is_composed_below_autograd(aten.add.Tensor)
    like = torch.empty(2, 3, 4, 5, device="meta").to(memory_format=torch.channels_last)
    made = cpp_metadata.compose_below_autograd(aten.ones_like.default, (like,), {})
    assert made.stride() == like.stride()


def test_strides_of_a_transform() -> None:
    tensor = torch.randn(3, 4, 5, dtype=torch.complex64).permute(2, 0, 1)
    expected = torch.fft.fft(tensor, dim=1)
    out = torch.empty(0, dtype=torch.complex64, device="meta")
    found = cpp_metadata.fft_into(out, tensor, list(tensor.shape), [1], forward=True)
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())


def test_a_transform_of_nothing_is_contiguous() -> None:
    tensor = torch.empty(3, 0, 5, dtype=torch.complex64).permute(2, 0, 1)
    out = torch.empty(0, dtype=torch.complex64, device="meta")
    found = cpp_metadata.fft_into(out, tensor, [5, 3, 0], [1], forward=True)
    assert found.stride() == torch.empty(5, 3, 0).stride()


def test_a_group_norm_that_packs_its_input_has_the_gradient_of_the_copy() -> None:
    """A row is packed whatever its stride: nothing is copied."""
    row = torch.rand(6).as_strided((1, 6), (3, 1)).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.group_norm(row, 2).sum(), row)
    assert cpp_metadata.group_norm_packs_its_input() == (gradient.stride() == row.stride())


def test_compositions_do_not_begin_kernels_of_the_cpu() -> None:
    aten = torch.ops.aten
    assert cpp_metadata.begins_kernel_of_cpu(aten.mm.default)
    assert cpp_metadata.is_structured(aten.pixel_shuffle.default)
    assert not cpp_metadata.begins_kernel_of_cpu(aten.pixel_shuffle.default)


def test_overloads_that_check_their_sizes_first() -> None:
    aten = torch.ops.aten
    assert cpp_metadata.has_structured_overload(aten._linalg_det.result)
    assert not cpp_metadata.has_structured_overload(aten.masked_select.out)


def test_the_kernel_of_a_convolution_depends_on_the_number_of_threads() -> None:
    weight, sizes = torch.ones(4, 4, 5, 5), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    takes = cpp_metadata.convolution_takes_mkldnn
    assert takes(torch.ones(2, 4, 9, 9), weight, *sizes) is torch.backends.mkldnn.is_available()
    assert takes(torch.ones(2, 4, 9, 9).double(), weight.double(), *sizes) is False
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert takes(torch.ones(2, 4, 9, 9), torch.ones(4, 4, 1, 1), *sizes) is False
    finally:
        torch.set_num_threads(before)


def test_operators_without_a_meta_kernel() -> None:
    assert cpp_metadata.has_meta_kernel(aten.add.Tensor)
    assert cpp_metadata.has_meta_kernel(aten.linear.default)  # composed
    assert not cpp_metadata.has_meta_kernel(aten.mode.values)
    assert not cpp_metadata.has_meta_kernel(aten.geqrf.a)


def test_operators_with_a_kernel_of_the_cpu() -> None:
    assert cpp_metadata.has_kernel_of_cpu(aten.bmm.default)
    assert not cpp_metadata.has_kernel_of_cpu(aten.linear.default)  # composed
    assert not cpp_metadata.has_kernel_of_cpu(aten.zeros_like.default)  # one for all devices


def test_pointwise_operators() -> None:
    """Of some, only the overload that writes nothing in place is tagged."""
    assert cpp_metadata.is_pointwise(aten.add.Tensor)
    assert cpp_metadata.is_pointwise(aten.eq_.Tensor)
    assert not cpp_metadata.is_pointwise(aten.addmm_.default)
    assert not cpp_metadata.is_pointwise(aten.mm.default)

"""Conditions on values that are no index: lengths, counts, probabilities, divisors.

Input: the arguments of a call, by name. Output: the :class:`Condition` that eager's kernel checks
on the CPU. Invariant: only the values that a condition names are needed, never those of data.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from torchfake._eager_checks.indices import Range
from torchfake._operators.argument_checks import check_shape_written


class Condition(NamedTuple):
    """What a kernel checks of the values of some arguments."""

    read: tuple[Any, ...]  # the tensors whose values decide
    refusal: Callable[..., Exception | None]  # of their values, in this order


Conditions = Callable[[dict[str, Any]], Iterator[Condition | Range]]


def _of_ctc(named: dict[str, Any]) -> Iterator[Condition]:
    """aten/src/ATen/native/LossCTC.cpp, ctc_loss_allocate_outputs."""
    lengths = named["input_lengths"], named["target_lengths"]
    is_tensor = isinstance(lengths[0], torch.Tensor)

    def refusal(*values: torch.Tensor) -> Exception | None:
        of_inputs, of_targets = (v.reshape(-1).tolist() for v in values) if values else lengths
        if is_tensor:
            for name, value in zip(("input_lengths", "target_lengths"), values, strict=True):
                if value.is_floating_point() or value.dtype is torch.bool:
                    return RuntimeError(f"{name} must be integral")
        return next(_refusals_of_ctc(named, of_inputs, of_targets), None)

    yield Condition(lengths if is_tensor else (), refusal)


def _refusals_of_ctc(
    named: dict[str, Any], of_inputs: list[int], of_targets: list[int]
) -> Iterator[Exception]:
    steps, batch, num_classes = named["log_probs"].shape
    targets, end = named["targets"], "(while checking arguments for ctc_loss_allocate_outputs)"
    if not 0 <= named.get("blank", 0) < num_classes:
        yield RuntimeError("blank must be in label range")
    for name, given in (("input_lengths", of_inputs), ("target_lengths", of_targets)):
        if len(given) != batch:
            yield RuntimeError(f"{name} must be of size batch_size")
    least = "Expected {} to have value at least 0, but got value {} " + end
    yield from (RuntimeError(least.format("target_lengths", n)) for n in of_targets if n < 0)
    expected, argument = sum(of_targets) if targets.dim() == 1 else batch, "argument #2 'targets'"
    if targets.shape[0] != expected:
        yield RuntimeError(
            f"Expected tensor to have size {expected} at dimension 0, but got size "
            f"{targets.shape[0]} for {argument} {end}"
        )
    longest = max(of_targets, default=0)
    if targets.dim() > 1 and targets.shape[1] < longest:
        yield RuntimeError(
            f"Expected tensor to have size at least {longest} at dimension 1, but got size "
            f"{targets.shape[1]} for {argument} {end}"
        )
    for n in of_inputs:
        if n < 0:
            yield RuntimeError(least.format("input_lengths", n))
        if n > steps:
            yield RuntimeError(
                f"Expected input_lengths to have value at most {steps}, but got value {n} {end}"
            )


def _of_segments(named: dict[str, Any]) -> Iterator[Condition]:
    """aten/src/ATen/native/SegmentReduce.cpp, and the kernel for offsets."""
    data, lengths, offsets = named["data"], named.get("lengths"), named.get("offsets")

    def of_lengths(values: torch.Tensor) -> Exception | None:
        if values.numel() and int(values.min()) < 0:
            return RuntimeError("lengths contains negative value!")
        if bool((values.sum(-1) != data.shape[named.get("axis", 0)]).any()):
            return RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to sum to "
                "data.size(lengths.dim()-1) when !unsafe."
            )
        return None

    def of_offsets(values: torch.Tensor) -> Exception | None:
        return RuntimeError(_SEGMENT) if bool((values.diff() < 0).any()) else None

    if lengths is not None and not named.get("unsafe", False):
        yield Condition((lengths,), of_lengths)
    elif lengths is None and offsets is not None:
        yield Condition((offsets,), of_offsets)


_SEGMENT = (
    "Expected segment_length >= 0 to be true, but got false.  (Could this error message be "
    "improved?  If so, please report an enhancement request to PyTorch.)"
)


def _of_table(named: dict[str, Any]) -> Iterator[Condition]:
    if named["weight"].dim() != 2:
        yield Condition((), lambda: RuntimeError("'weight' must be 2-D"))


def _of_bag_offsets(named: dict[str, Any]) -> Iterator[Condition]:
    """aten/src/ATen/native/EmbeddingBag.cpp: the first offset, the last, and those between."""
    num = named["indices"].shape[0]

    def refusal(values: torch.Tensor) -> Exception | None:
        given = values.tolist()
        if given and given[0] != 0:
            return RuntimeError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
                f"from position 0. However, got {given[0]}\n[ torch.LongTensor{{}} ]"
            )
        if given and given[-1] > num:
            return RuntimeError(
                f"offsets[-1] can not be greater than input's length {num} but got offsets[-1] of "
                f"{given[-1]}"
            )
        used = given[:-1] if named.get("include_last_offset") else given
        if any(not 0 <= offset <= num for offset in used):
            return IndexError("index out of range in self")
        return None

    yield Condition((named["offsets"],), refusal)


def _of_mask(named: dict[str, Any]) -> Iterator[Condition]:
    """``masked_scatter``: the source has an element for each true one of the broadcast mask."""
    self, mask, source = named["self"], named["mask"], named["source"]
    size = torch.broadcast_shapes(self.shape, mask.shape)
    times = math.prod(size) // max(mask.numel(), 1)

    def refusal(values: torch.Tensor) -> Exception | None:
        if int(values.sum()) * times <= source.numel():
            return None
        return RuntimeError("Number of elements of source < number of ones in mask")

    yield Condition((mask,), refusal)


def _of_masks_written(named: dict[str, Any]) -> Iterator[Condition]:
    """``x[mask] = values``: there is a value for each true element, or one for all."""
    self, indices, values = named["self"], named["indices"], named["values"]
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]

    def refusal(*known: torch.Tensor) -> Exception | None:
        places = iter([mask.nonzero(as_tuple=True) for mask in known])
        expanded: list[Any] = []
        for index in indices:
            is_mask = any(index is mask for mask in masks)
            expanded.extend(next(places) if is_mask else (index,))
        try:
            check_shape_written(self, expanded, values)
        except RuntimeError as error:
            return error
        return None

    if masks and values.numel() != 1 and _fit(self, indices, masks):
        yield Condition(tuple(masks), refusal)


def _fit(tensor: torch.Tensor, indices: Any, masks: list[torch.Tensor]) -> bool:
    """Whether the masks have the sizes of the dims that they index."""
    dim = 0
    for index in indices:
        is_mask = any(index is mask for mask in masks)
        if is_mask and tensor.shape[dim : dim + index.dim()] != index.shape:
            return False
        dim += index.dim() if is_mask else 1
    return dim <= tensor.dim()


def _and(*parts: Conditions) -> Conditions:
    def conditions(named: dict[str, Any]) -> Iterator[Condition | Range]:
        return itertools.chain.from_iterable(part(named) for part in parts)

    return conditions


def _of_divisor(named: dict[str, Any]) -> Iterator[Condition]:
    """Division of integers that rounds: floats give infinity or NaN."""
    tensors = [named.get(name) for name in ("self", "other")]
    if any(t.dtype.is_floating_point for t in tensors if isinstance(t, torch.Tensor)):
        return
    if isinstance(tensors[0], torch.Tensor) and 0 in tensors[0].shape:
        return
    if isinstance(tensors[1], torch.Tensor) and not isinstance(tensors[0], float):
        yield Condition((tensors[1],), _refuse_zero)


def _refuse_zero(values: torch.Tensor) -> Exception | None:
    return RuntimeError("ZeroDivisionError") if bool((values == 0).any()) else None


def _of_rounded(named: dict[str, Any]) -> Iterator[Condition]:
    return _of_divisor(named) if named.get("rounding_mode") is not None else iter(())


def _of_probabilities(named: dict[str, Any]) -> Iterator[Condition]:
    for shown, name in (("input", "self"), ("target", "target")):

        def refusal(values: torch.Tensor, shown: str = shown) -> Exception | None:
            if bool(((values >= 0) & (values <= 1)).all()):
                return None
            return RuntimeError(f"all elements of {shown} should be between 0 and 1")

        yield Condition((named[name],), refusal)


def _of_assertion(named: dict[str, Any]) -> Iterator[Condition]:
    text = named.get("assert_msg") or "Expected Tensor with single nonzero value, but got zero"

    def refusal(values: torch.Tensor) -> Exception | None:
        return RuntimeError(text) if values.numel() == 1 and not bool(values) else None

    yield Condition((named["self"],), refusal)


def _of_reduced_dim(name: str) -> Conditions:
    """A dim without elements, which has no element to return."""

    def conditions(named: dict[str, Any]) -> Iterator[Condition]:
        tensor = named["self"]
        dim = named.get("dim", -1) % max(tensor.dim(), 1)
        if tensor.dim() and not tensor.shape[dim]:
            text = f"{name}(): Expected reduction dim {dim} to have non-zero size."
            yield Condition((), lambda: IndexError(text))

    return conditions


def _refused(refusal: Exception) -> Condition:
    """The condition that a kernel checks of shapes and numbers alone, where it fails."""
    return Condition((), lambda: refusal)


def _of_selection(named: dict[str, Any]) -> Iterator[Condition]:
    if named["index"].dim() > 1:
        yield _refused(IndexError("index_select(): Index is supposed to be a vector"))


def _of_addition(named: dict[str, Any]) -> Iterator[Condition]:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_func_meta_impl."""
    own, source = list(named["self"].shape), list(named["source"].shape)
    dim = named["dim"] + (len(own) if named["dim"] < 0 else 0)
    both = [
        [*sizes[:dim], *sizes[dim + 1 :]] if own and source else sizes for sizes in (own, source)
    ]
    if both[0] != both[1]:
        yield _refused(
            RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified "
                f"dimension. Got self.shape = {own} source.shape = {source}"
            )
        )


def _of_put(named: dict[str, Any]) -> Iterator[Condition]:
    sizes = named["source"].numel(), named["index"].numel()
    if sizes[0] != sizes[1]:
        text = "put_(): Expected source and index to have the same number of elements, but got "
        yield _refused(IndexError(f"{text}source.numel() = {sizes[0]}, index.numel() = {sizes[1]}"))


def _of_boundaries(named: dict[str, Any]) -> Iterator[Condition]:
    if (num_dims := named["boundaries"].dim()) != 1:
        text = f"boundaries tensor must be 1 dimension, but got dim({num_dims})"
        yield _refused(RuntimeError(text))


def _of_delta(named: dict[str, Any]) -> Iterator[Condition]:
    if named.get("delta", 1.0) <= 0:
        text = "huber_loss does not support non-positive values for delta."
        yield _refused(RuntimeError(text))


def _of_unpooling(named: dict[str, Any]) -> Iterator[Condition]:
    shape, given = list(named["self"].shape), list(named["indices"].shape)
    if shape != given:
        yield _refused(
            RuntimeError(
                f"Expected shape of indices to be same as that of the input tensor ({shape}) but "
                f"got indices tensor with shape: {given}"
            )
        )


def _of_least_squares(named: dict[str, Any]) -> Iterator[Condition]:
    for shown, name, least in (("input", "self", 2), ("other", "b", 1)):
        if named[name].dim() < least:
            text = f"torch.linalg.lstsq: {shown} must have at least {least} dimensions."
            yield _refused(RuntimeError(text))


def _of_joining(named: dict[str, Any]) -> Iterator[Condition]:
    tensors, out = named["tensors"], named.get("out")
    if out is not None and tensors:
        joined = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
        if not torch.can_cast(joined, out.dtype):
            name = out.type().rpartition(".")[2].removesuffix("Tensor")
            text = "torch.cat(): input types can't be cast to the desired output type "
            yield _refused(TypeError(text + name))


def conditions_with(indices: Mapping[str, Conditions]) -> dict[str, Conditions]:
    """The conditions on values by packet: those of `indices`, and those of this file."""
    added = {**dict.fromkeys(_BAGS, _of_bag_offsets), **dict.fromkeys(_PUTS, _of_masks_written)}
    added["aten::embedding"] = _of_table
    added["aten::index_select"] = _of_selection
    added.update(dict.fromkeys(("aten::index_add", "aten::index_add_"), _of_addition))
    added.update(dict.fromkeys(("aten::put", "aten::put_"), _of_put))
    added.update(dict.fromkeys(("aten::max_unpool2d", "aten::max_unpool3d"), _of_unpooling))
    both = {packet: _and(first, indices[packet]) for packet, first in added.items()}
    return {**indices, **_CONDITIONS, **both}


_DIVISIONS = ("floor_divide", "remainder", "fmod")
_BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
_PUTS = (
    "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put",
)  # fmt: skip

_CONDITIONS: dict[str, Conditions] = {
    "aten::_ctc_loss": _of_ctc,
    "aten::bucketize": _of_boundaries,
    "aten::huber_loss": _of_delta,
    "aten::linalg_lstsq": _of_least_squares,
    **dict.fromkeys(("aten::cat", "aten::stack", "aten::_chunk_cat"), _of_joining),
    "aten::segment_reduce": _of_segments,
    **dict.fromkeys(("aten::masked_scatter", "aten::masked_scatter_"), _of_mask),
    **{f"aten::{name}": _of_divisor for each in _DIVISIONS for name in (each, f"{each}_")},
    **dict.fromkeys(("aten::div", "aten::div_"), _of_rounded),
    "aten::binary_cross_entropy": _of_probabilities,
    "aten::_assert_async": _of_assertion,
    **{f"aten::{name}": _of_reduced_dim(name) for name in ("kthvalue", "mode")},
}

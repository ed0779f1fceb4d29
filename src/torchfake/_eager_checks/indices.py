"""Ranges of indices: eager's kernels compare indices with sizes, meta kernels do not read them.

Input: the arguments of a call, by name. Output: for each tensor of indices, the :class:`Range` that
the kernel accepts, or the error that eager raises. Invariant: no value but that of the indices is
needed; indices of unknown value are assumed to be in range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch


class Range(NamedTuple):
    """The indices that a kernel accepts in one tensor: ``least <= index < end``."""

    index: Any
    least: int
    end: int
    error: type[Exception]
    text: str  # of the error; ``{0}`` stands for the index, ``{1}`` for its place
    ignored: int | None = None  # an index that the kernel skips

    @property
    def read(self) -> tuple[Any, ...]:
        """The tensors whose values decide."""
        return (self.index,)

    def refusal(self, values: torch.Tensor) -> Exception | None:
        """The error that eager raises if the index has these `values`."""
        is_wrong = (values < self.least) | (values >= self.end)
        if self.ignored is not None:
            is_wrong &= values != self.ignored
        places = is_wrong.flatten().nonzero()
        if not len(places):
            return None
        place = int(places[0])
        return self.error(self.text.format(int(values.flatten()[place]), place))


Ranges = Callable[[dict[str, Any]], Iterator[Range]]
"""The ranges of the indices among the arguments, by name, of one call."""

_OF_DIM = "index {0} is out of bounds for dimension %d with size %d"


def _of_indices(named: dict[str, Any]) -> Iterator[Range]:
    """Of ``x[i, j]``: masks, which take a dim for each of theirs, are compared elsewhere."""
    dim, sizes = 0, named["self"].shape
    given = [index for index in named["indices"] if index is not None]
    for index in named["indices"]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        if dim >= len(sizes):
            return  # too many indices, which the kernel refuses
        if index is not None and not is_mask:
            place = [one is index for one in given].index(True)
            text = _OF_DIM % (place, sizes[dim])
            yield Range(index, -sizes[dim], sizes[dim], IndexError, text)
        dim += index.dim() if is_mask else 1


def _along_dim(error: type[Exception], text: str, *, from_end: bool = False) -> Ranges:
    """Of one index along a dim of the first argument, counted from its end too if `from_end`."""

    def ranges(named: dict[str, Any]) -> Iterator[Range]:
        tensor = named["self"]
        dim = named["dim"] % max(tensor.dim(), 1)
        size = tensor.shape[dim] if tensor.dim() else 1
        shown = text % (dim, size) if "%d" in text else text
        yield Range(named["index"], -size if from_end else 0, size, error, shown)

    return ranges


def _of_selected(named: dict[str, Any]) -> Iterator[Range]:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_select_out_cpu_: the second dim has a
    kernel of its own.
    """
    tensor, out = named["self"], named.get("out")
    dim = named["dim"] % max(tensor.dim(), 1)
    size = tensor.shape[dim] if tensor.dim() else 1
    is_second = tensor.dim() > 1 and dim == 1 and (out is None or out.is_contiguous())
    error = (RuntimeError, f"INDICES element is out of DATA bounds, id={{0}} axis_dim={size}")
    yield Range(named["index"], 0, size, *(error if is_second else (IndexError, _OF_SELF)))


def _of_added(named: dict[str, Any]) -> Iterator[Range]:
    """The same file, index_add_cpu_: a vector has a loop of its own."""
    is_vector = named["self"].dim() < 2
    return (_along_dim(IndexError, _OF_SELF) if is_vector else _REDUCES)(named)


def _of_all_elements(named: dict[str, Any]) -> Iterator[Range]:
    num = named["self"].numel()
    text = f"out of range: tried to access index {{0}} on a tensor of {num} elements."
    yield Range(named["index"], -num, num, IndexError, text)


def _of_rows(named: dict[str, Any]) -> Iterator[Range]:
    if named["weight"].dim() == 2:
        yield Range(named["indices"], 0, len(named["weight"]), IndexError, _OF_SELF)


def _of_bags(named: dict[str, Any]) -> Iterator[Range]:
    """aten/src/ATen/native/EmbeddingBag.cpp: FBGEMM has its own text."""
    weight, is_max = named["weight"], named.get("mode") == 2
    is_padded, dtypes = named.get("padding_idx", -1) >= 0, (torch.float64,)
    is_fast = not (is_max or is_padded or weight.dtype in dtypes) and weight.stride(1) == 1
    text = (
        f"Index {{1}} of input takes value {{0}} which is not in the valid range [0, {len(weight)})"
        if is_fast
        else "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {0}"
    )
    yield Range(named["indices"], 0, len(weight), RuntimeError, text)


def _of_classes(error: type[Exception], text: str, least: int = 0) -> Ranges:
    """Of the targets of a loss whose input has a dim of classes: the second, or the only one."""

    def ranges(named: dict[str, Any]) -> Iterator[Range]:
        sizes, ignored = named["self"].shape, named.get("ignore_index")
        num_classes = sizes[min(1, len(sizes) - 1)] if sizes else 1
        yield Range(named["target"], least, num_classes, error, text, ignored)

    return ranges


def _of_pooled(named: dict[str, Any]) -> Iterator[Range]:
    sizes = named["output_size"]
    volumes = "x".join(map(str, sizes))
    text = f"Found an invalid max index: {{0}} (output volumes are of size {volumes})"
    yield Range(named["indices"], 0, math.prod(sizes), RuntimeError, text)


def _of_sorter(named: dict[str, Any]) -> Iterator[Range]:
    sorter = named.get("sorter")
    if sorter is not None and sorter.dim():
        text = "torch.searchsorted(): sorter index out of range"
        yield Range(sorter, 0, sorter.shape[-1], RuntimeError, text)


def _of_pivots(name: str, matrix: str, text: str, too_small: str, too_large: str) -> Ranges:
    """Of pivots, which count from 1. What is too small is refused before what is too large."""

    def ranges(named: dict[str, Any]) -> Iterator[Range]:
        num = named[matrix].shape[-2] if named[matrix].dim() > 1 else _MAX_INT - 1
        for bounds, found in (((1, _MAX_INT), too_small), ((-_MAX_INT, num + 1), too_large)):
            yield Range(named[name], *bounds, RuntimeError, text % found)

    return ranges


_MAX_INT = (1 << 31) - 1

_OF_SELF = "index out of range in self"
_REDUCES = _along_dim(RuntimeError, _OF_DIM)

INDICES: dict[str, Ranges] = {
    **dict.fromkeys(
        ("aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
         "aten::_index_put_impl_", "aten::_unsafe_index_put"),
        _of_indices,
    ),
    **dict.fromkeys(
        ("aten::gather", "aten::scatter", "aten::scatter_", "aten::scatter_add",
         "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_"),
        _REDUCES,
    ),
    **dict.fromkeys(
        ("aten::index_reduce", "aten::index_reduce_"), _along_dim(IndexError, _OF_SELF)
    ),
    **dict.fromkeys(("aten::index_add", "aten::index_add_"), _of_added),
    "aten::index_select": _of_selected,
    **dict.fromkeys(
        ("aten::index_copy", "aten::index_copy_"),
        _along_dim(IndexError, f"index_copy_(): {_OF_DIM}"),
    ),
    **dict.fromkeys(
        ("aten::index_fill", "aten::index_fill_"), _along_dim(IndexError, _OF_DIM, from_end=True)
    ),
    **dict.fromkeys(("aten::take", "aten::put", "aten::put_"), _of_all_elements),
    "aten::embedding": _of_rows,
    "aten::_embedding_bag": _of_bags,
    "aten::_embedding_bag_forward_only": _of_bags,
    **dict.fromkeys(
        ("aten::nll_loss_forward", "aten::nll_loss2d_forward"),
        _of_classes(IndexError, "Target {0} is out of bounds."),
    ),
    "aten::multi_margin_loss": _of_classes(RuntimeError, "target out of range"),
    "aten::multilabel_margin_loss_forward": _of_classes(
        RuntimeError, "argument #2 'target' is out of range", least=-1
    ),
    **dict.fromkeys(("aten::max_unpool2d", "aten::max_unpool3d"), _of_pooled),
    "aten::searchsorted": _of_sorter,
    "aten::lu_unpack": _of_pivots(
        "LU_pivots",
        "LU_data",
        "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive.%sDid you properly "
        "pass the result of lu_factor?",
        "",
        "",
    ),
    "aten::linalg_lu_solve": _of_pivots(
        "pivots",
        "LU",
        "Pivots given to lu_solve must all be %s. Did you properly pass the result of lu_factor?",
        "greater or equal to 1",
        "smaller or equal to LU.size(-2)",
    ),
}  # fmt: skip
"""The ranges of indices that the operators accept, by packet."""

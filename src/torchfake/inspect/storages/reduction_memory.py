"""Scratch memory of a reduction on CUDA: if few results are computed from many values, several
thread blocks share each result and combine their partial results in a buffer.

Input: the layout of the tensor, the dims that are reduced, the number of multiprocessors. Output:
bytes of the buffer and of the semaphores. Invariant: the computation follows ``setReduceConfig`` in
aten/src/ATen/native/cuda/Reduce.cuh, whose names are used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

_MAX_THREADS = 512  # per block
_WARP = 32
_THREADS_OF_MULTIPROCESSOR = 2048
_MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD = 16, 256
_VECTOR = 4


class _Dim(NamedTuple):
    """A dim of the iteration; its size and strides are in elements."""

    size: int
    step: int  # the tensor's stride
    is_reduced: bool
    result_step: int  # the result's stride


@lru_cache(maxsize=4096)
def reduction_bytes(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    accumulated_bytes: int,
    num_multiprocessors: int,
) -> tuple[int, ...]:
    """Bytes of the buffer and of the semaphores of a reduction over `dims`; empty if one block
    computes each result.

    Args:
        shape: the shape of the tensor.
        strides: its strides, in elements.
        dims: the dims that are reduced; if empty, all.
        accumulated_bytes: bytes of an accumulator, such as 4 for a sum of bfloat16.
        num_multiprocessors: the number of multiprocessors of the GPU.
    """
    if 0 in shape:
        return ()
    reduced = {dim % len(shape) for dim in dims} if dims else set(range(len(shape)))
    found = _coalesced(shape, strides, reduced)
    return _Config.of(found, accumulated_bytes, num_multiprocessors).buffers()


def _coalesced(shape: Sequence[int], strides: Sequence[int], reduced: set[int]) -> list[_Dim]:
    """The dims in TensorIterator's order, coalesced: reduced dims first, from the innermost on."""
    all_dims, result_step = [], 1
    for dim in reversed(range(len(shape))):
        is_reduced = dim in reduced
        all_dims.append(
            _Dim(shape[dim], strides[dim], is_reduced, 0 if is_reduced else result_step)
        )
        result_step *= 1 if is_reduced else shape[dim]
    all_dims = [d for d in all_dims if d.size != 1]
    inner = sorted((d for d in all_dims if d.is_reduced), key=lambda d: d.step)
    joined: list[_Dim] = []
    for each in [*inner, *(d for d in all_dims if not d.is_reduced)]:
        last = joined[-1] if joined else None
        if last is not None and _follows(last, each):
            joined[-1] = last._replace(size=last.size * each.size)
        else:
            joined.append(each)
    return joined


def _follows(inner: _Dim, outer: _Dim) -> bool:
    return (
        inner.is_reduced == outer.is_reduced
        and inner.size * inner.step == outer.step
        and inner.size * inner.result_step == outer.result_step
    )


@dataclass
class _Config:
    """The shape of blocks and grid of a reduction: ReduceConfig in Reduce.cuh."""

    element_bytes: int
    num_inputs: int  # per result
    num_outputs: int
    output_vec: int = 1
    step_input: int = 1
    step_output: int = 1
    reduces_in_x: bool = False
    ctas_per_output: int = 1
    width: int = 1

    @classmethod
    def of(cls, dims: list[_Dim], element_bytes: int, num_multiprocessors: int) -> _Config:
        num_inputs = num_outputs = 1
        for dim in dims:
            if dim.is_reduced:
                num_inputs *= dim.size
            else:
                num_outputs *= dim.size
        self = cls(element_bytes, num_inputs, num_outputs)
        height, num_threads = self._choose_block(dims)
        values = -(-num_inputs // self.step_input)
        splits_input = values >= height * _MIN_VALUES_PER_THREAD or values >= _MAX_VALUES_PER_THREAD
        if splits_input:
            self.step_input *= height
        else:
            self.step_output *= height
        if splits_input:
            self._choose_ctas(_THREADS_OF_MULTIPROCESSOR // num_threads * num_multiprocessors)
        return self

    def _choose_block(self, dims: list[_Dim]) -> tuple[int, int]:
        """Set the width of a block, over inputs or outputs; return its height and its threads."""
        num_reduced = sum(dim.is_reduced for dim in dims)
        is_inner = num_reduced == len(dims) or dims[0].step < dims[num_reduced].step
        if not dims or num_reduced == 0:
            is_inner = not dims
        sizes = [self.num_inputs, self.num_outputs]
        if not is_inner:
            sizes.reverse()
        fastest = (dims[0] if is_inner else dims[num_reduced]).step if dims else 0
        if fastest == 1 and is_inner and sizes[0] > 128 and len(dims) == 1:
            sizes[0] //= _VECTOR
        elif fastest == 1 and not is_inner:
            self.output_vec = _output_vector(dims, num_reduced)
            sizes[0] //= self.output_vec
        most = _MAX_THREADS // self.output_vec
        powers = [min(_last_power(size), most) for size in sizes]
        width = min(powers[0], _WARP)
        height = min(powers[1], most // width)
        width = min(powers[0], most // height)
        self.width, self.reduces_in_x = width, is_inner
        if is_inner:
            self.step_input *= width
        else:
            self.step_output *= width
        return height, width * height

    def _choose_ctas(self, target_grid: int) -> None:
        values, grid = -(-self.num_inputs // self.step_input), self._grid()
        if values < _MAX_VALUES_PER_THREAD or grid > target_grid:
            return
        fewest = min(-(-target_grid // grid), -(-values // _MIN_VALUES_PER_THREAD))
        self.ctas_per_output = max(fewest, -(-values // _MAX_VALUES_PER_THREAD))

    def _grid(self) -> int:
        return -(-(self.num_outputs // self.output_vec) // self.step_output)

    def buffers(self) -> tuple[int, ...]:
        """Bytes of the buffer (global_memory_size) and of the semaphores (semaphore_size)."""
        if self.ctas_per_output == 1:
            return ()
        num_bytes = self.element_bytes * self.num_outputs * self.ctas_per_output
        if not self.reduces_in_x:
            num_bytes *= self.width * self.output_vec
        return num_bytes, 4 * self._grid()


def _last_power(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def _output_vector(dims: list[_Dim], first: int) -> int:
    """The vector size of the outputs (get_output_vec_size in Reduce.cuh), for aligned memory."""
    vector = _VECTOR
    for n in (dims[first].size, *(d.step for i, d in enumerate(dims) if i != first)):
        while n % vector:
            vector //= 2
    return vector

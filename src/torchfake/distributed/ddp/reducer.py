"""The reducer of DDP: gradients become ready, buckets are reduced, and buckets are rebuilt.

Input: the calls by ``DistributedDataParallel`` of its reducer. Output: gradients that are means
over the ranks. Invariant: buckets are reduced in order, each as soon as its gradients are ready;
after the first backward pass buckets are rebuilt, in the order in which gradients became ready.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchfake._torch.distributed.training import accumulator_of, after_backward, bucket_assignment
from torchfake.distributed.ddp.broadcasts import broadcast_numbers
from torchfake.distributed.ddp.buckets import AllReduce, Bucket, communication_stream
from torchfake.distributed.ddp.used_parameters import UsedMap, without_gradient
from torchfake.errors import InputsError
from torchfake.observe import observers

_FIRST_BYTES, _BYTES = 1 << 20, 25 << 20


class Reducer:
    """Replaces ``torch.distributed.Reducer``; methods have the names that DDP calls."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = _BYTES,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: Any = None,
        first_bucket_bytes_cap: int = _FIRST_BYTES,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Sequence[int] = (),
        batched_grad_copy: bool = False,
        lazy_bucket_allocation: bool = False,  # since torch 2.15
    ) -> None:
        for asked, name in (
            (any(expect_sparse_gradients), "Embedding(sparse=True)"),
            (skip_all_reduce_unused_params, "skip_all_reduce_unused_params=True"),
            (batched_grad_copy, "batched_grad_copy=True"),
            (lazy_bucket_allocation, "lazy_bucket_allocation=True"),
        ):
            if asked:
                raise InputsError(
                    f"DistributedDataParallel with {name} cannot be planned: leave it out"
                )
        self.params, self.group = list(params), process_group
        self.keeps_views = gradient_as_bucket_view
        self.used: UsedMap | None = None  # the parameters used, where they may differ by rank
        if find_unused_parameters:
            self.used = UsedMap(len(self.params), self.params[0].device)
        self.buckets: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._make_buckets(bucket_indices)
        self._names = param_to_name_mapping or {}
        self._limits = list(bucket_bytes_cap_list) or [first_bucket_bytes_cap, bucket_bytes_cap]
        self._finds_unused, self._is_static = find_unused_parameters, False
        self._num_ranks = process_group.size()
        self._stream = communication_stream(self.params[0].device)
        self._accumulators = [accumulator_of(param) for param in self.params]
        for index, node in enumerate(self._accumulators):
            node.register_hook(_Hook(self, index))
        self._num_steps = 0  # forward passes that are followed by a reduction
        self._num_hooks = [0] * len(self.params)  # hook calls in a static graph's first step
        self._hooks_left: list[int] = []
        self._unused: list[int] = []
        self._has_marked_unused = False
        self._expects_hooks = self._has_rebuilt = self._must_finish = False
        self._arrived: list[int] = []  # the order of gradients in the first backward pass
        self._ready: set[int] = set()  # parameters whose gradients are in buckets in this pass
        self._next_bucket = 0
        self._map_end: Any = None

    def held(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors that the reducer holds, as pairs of category and tensor."""
        kind = "gradients" if self.keeps_views else "temporaries"
        flats = [(kind, bucket.flat) for bucket in self.buckets]
        maps = [] if self.used is None else [self.used.on_host, self.used.on_device]
        return [*flats, *(("temporaries", tensor) for tensor in maps)]

    # Before and after the forward pass.

    def prepare_for_forward(self) -> None:
        self._num_steps += 1

    def _rebuild_buckets(self) -> bool:
        self._check_reducer_finalized()
        if not self._rebuilds or not self._arrived:
            return False
        params = [self.params[i] for i in self._arrived]
        indices = bucket_assignment(params, self._limits, self._arrived)
        self._has_rebuilt, self._arrived = True, []
        broadcast_numbers(len(params) + 1, self.params[0], self.group)  # their number and indices
        broadcast_numbers(len(indices), self.params[0], self.group)
        self._make_buckets(indices)
        report(self)
        return True

    def _make_buckets(self, indices: Sequence[Sequence[int]]) -> None:
        """Create the buckets of the parameters with these indices, in place of the old buckets."""
        self.buckets.clear()
        self._bucket_of.clear()
        for each in indices:
            self.buckets.append(Bucket(self.params, each))
            if self.keeps_views:
                self.buckets[-1].adopt_gradients()
        self._bucket_of.update((i, bucket) for bucket in self.buckets for i in bucket.indices)

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        self._expects_hooks = True
        self._next_bucket = 0
        self._ready.clear()
        for bucket in self.buckets:
            bucket.num_pending = len(bucket.params)
        self._hooks_left = list(self._num_hooks)
        self._has_marked_unused = False
        if self._finds_unused and not self._is_static:
            self._unused = without_gradient(outputs, self._accumulators)

    # During the backward pass.

    def _autograd_hook(self, index: int) -> None:
        if not self._expects_hooks:
            return  # in no_sync()
        if self.used is not None and self.params[index].grad is not None:
            self.used.used.add(index)
        if self._is_static and self._num_steps == 1:
            self._num_hooks[index] += 1
            return
        if not self._has_marked_unused:
            self._has_marked_unused = True
            for unused in self._unused:
                self._mark_ready(unused)
        if self._is_static:
            self._hooks_left[index] -= 1
            if self._hooks_left[index]:
                return
        if self._rebuilds:
            self._arrived.append(index)
        self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        self._must_finish = True
        self._ready.add(index)
        bucket = self._bucket_of[index]
        bucket.take_in(index, self._num_ranks, self.keeps_views)
        bucket.num_pending -= 1
        while self._next_bucket < len(self.buckets):
            bucket = self.buckets[self._next_bucket]
            if bucket.num_pending:
                return
            self._reduce(bucket)
            self._next_bucket += 1
        if self.used is not None and not self._is_static:
            self._send_map(self.used)
        after_backward(self._finish)

    def _send_map(self, used: UsedMap) -> None:
        self._map_end = AllReduce(used.send(), self.group, self._stream)

    def _reduce(self, bucket: Bucket) -> None:
        bucket.end = AllReduce(bucket.flat, self.group, self._stream)

    def _delay_all_reduce(self) -> None:
        """Reduce all buckets at the end of the first step of a static graph."""
        assert self.used is not None
        self._send_map(self.used)
        self._unused = [i for i, number in enumerate(self._num_hooks) if not number]
        for index in range(len(self.params)):
            self._bucket_of[index].take_in(index, self._num_ranks, self.keeps_views)
        for bucket in self.buckets:
            self._reduce(bucket)
        self._finish()

    def _finish(self) -> None:
        """Wait for all reductions at the end of the backward pass, and set the gradients."""
        self._expects_hooks = self._must_finish = False
        if self._is_static and self._num_steps > 1 and self._rebuilds:
            self._arrived += self._unused
        for bucket in self.buckets:
            bucket.end.wait()
            bucket.end = None
            bucket.give_back(self._is_unused, self.keeps_views)
        if self.used is None:
            return
        if self._map_end is not None and not self.used.is_read:
            self._map_end.wait()
        self._map_end = None
        if not self._is_static:
            self.used.reset()

    def _is_unused(self, index: int) -> bool:
        return self.used is not None and self.used.is_unused(index, self._map_end)

    @property
    def _rebuilds(self) -> bool:
        return (self._is_static or not self._finds_unused) and not self._has_rebuilt

    # Other methods that DDP calls.

    def _check_reducer_finalized(self) -> None:
        if not self._must_finish:
            return
        names = [
            str(self._names.get(i, i)) for i in range(len(self.params)) if i not in self._ready
        ]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        raise RuntimeError(
            "Expected to have finished reduction in the prior iteration before starting a new one: "
            f"the loss does not depend on {', '.join(names[:4])}{more}. Give "
            "DistributedDataParallel find_unused_parameters=True"
        )

    def _set_static_graph(self) -> None:
        self._is_static = True
        self.used = UsedMap(len(self.params), self.params[0].device)

    def set_logger(self, logger: Any) -> None:
        """Do nothing, since nothing is logged."""

    def _install_post_backward_futures(self, futures: Any) -> None:
        for future in futures:
            after_backward(future.wait)

    def __getattr__(self, name: str) -> Any:
        raise InputsError(
            f"what uses Reducer.{name} of DistributedDataParallel (join, mixed_precision) cannot "
            "be planned: leave it out"
        )


class _Hook:
    """The hook called when a gradient was accumulated; does not keep the reducer alive."""

    def __init__(self, reducer: Reducer, index: int) -> None:
        self._reducer, self._index = weakref.ref(reducer), index

    def __call__(self, *args: Any) -> None:
        reducer = self._reducer()
        if reducer is not None:
            reducer._autograd_hook(self._index)


def held_by_reducers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The tensors that the reducers of a module hold, as pairs of category and tensor."""
    reducers = [getattr(part, "reducer", None) for part in module.modules()]
    return [pair for each in reducers if isinstance(each, Reducer) for pair in each.held()]


def report(reducer: Reducer) -> None:
    """Report the tensors that the reducer holds to the tracker of the rank."""
    for observer in observers():
        if hasattr(observer, "register_held"):
            observer.register_held(reducer.held())


class Logger:
    """Replaces ``torch.distributed.Logger``, and logs nothing."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def set_construction_data_and_log(self, *args: Any) -> None:
        """Do nothing."""

    def set_runtime_stats_and_log(self) -> None:
        """Do nothing."""

    def _set_comm_hook_name(self, name: str) -> None:
        """Do nothing: DDP registers the hook next, which the reducer refuses."""

    def set_error_and_log(self, error: str) -> None:
        """Do nothing: DDP raises the error."""

    def _set_static_graph(self) -> None:
        """Do nothing: DDP also sets this on the reducer."""

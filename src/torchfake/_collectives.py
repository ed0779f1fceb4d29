"""Collectives on fakes: what comes back, and how much would be sent.

Enters: a collective operator and its arguments, fakes among them. Leaves: the metadata of its
results, and for those who count, a :class:`Message`. Invariant: nothing is sent, whatever the
process group is, and no value survives: what other ranks would have sent is not known.

The ``c10d`` operators write tensors that they are given, which their schemas do not say; the
functional ones, which DTensor uses, give new tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake import _private_distributed as _private
from torchfake._call import Args, Call, Kwargs, output_device, tensors_written
from torchfake._interpret import run_on_meta, wrap
from torchfake._ops import plan_of
from torchfake._tensor import FakeTensor
from torchfake.errors import RealTensorWriteError


class Kind(NamedTuple):
    """What one operator does, by the positions of its arguments."""

    collective: str  # "all_gather", "reduce_scatter", ...
    payload: int  # whose bytes are the payload; lists opened
    written: int | None = None  # what it writes
    per_rank: bool = False  # the payload is so much for each rank of the group


KINDS: dict[str, Kind] = {
    "c10d::allreduce_": Kind("all_reduce", 0, 0),
    "c10d::allreduce_coalesced_": Kind("all_reduce", 0, 0),
    "c10d::allgather_": Kind("all_gather", 0, 0),
    "c10d::allgather_coalesced_": Kind("all_gather", 0, 0),
    "c10d::_allgather_base_": Kind("all_gather", 0, 0),
    "c10d::allgather_into_tensor_coalesced_": Kind("all_gather", 0, 0),
    "c10d::reduce_scatter_": Kind("reduce_scatter", 1, 0),
    "c10d::_reduce_scatter_base_": Kind("reduce_scatter", 1, 0),
    "c10d::reduce_scatter_tensor_coalesced_": Kind("reduce_scatter", 1, 0),
    "c10d::alltoall_": Kind("all_to_all", 1, 0),
    "c10d::alltoall_base_": Kind("all_to_all", 1, 0),
    "c10d::broadcast_": Kind("broadcast", 0, 0),
    "c10d::reduce_": Kind("reduce", 0, 0),
    "c10d::gather_": Kind("gather", 1, 0, per_rank=True),
    "c10d::scatter_": Kind("scatter", 0, 0, per_rank=True),
    "c10d::send": Kind("send", 0),
    "c10d::recv_": Kind("recv", 0, 0),
    "c10d::recv_any_source_": Kind("recv", 0, 0),
    "_c10d_functional::isend": Kind("send", 0),
    "_c10d_functional::irecv": Kind("recv", 0, 0),
    "_c10d_functional::all_reduce": Kind("all_reduce", 0),
    "_c10d_functional::all_reduce_": Kind("all_reduce", 0, 0),
    "_c10d_functional::all_reduce_coalesced": Kind("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": Kind("all_reduce", 0, 0),
    "_c10d_functional::all_gather_into_tensor": Kind("all_gather", 0, per_rank=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": Kind("all_gather", 0, per_rank=True),
    "_c10d_functional::reduce_scatter_tensor": Kind("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": Kind("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": Kind("all_to_all", 0),
    "_c10d_functional::broadcast": Kind("broadcast", 0),
    "_c10d_functional::broadcast_": Kind("broadcast", 0, 0),
    "_c10d_functional::all_gather_into_tensor_out": Kind("all_gather", 0, per_rank=True),
    "_c10d_functional::reduce_scatter_tensor_out": Kind("reduce_scatter", 0),
    "_c10d_functional_autograd::all_gather_into_tensor": Kind("all_gather", 0, per_rank=True),
    "_c10d_functional_autograd::reduce_scatter_tensor": Kind("reduce_scatter", 0),
    "_c10d_functional_autograd::all_to_all_single": Kind("all_to_all", 0),
    "_dtensor::shard_dim_alltoall": Kind("all_to_all", 0),
}
"""By the name of the operator. ``barrier`` sends no tensor and is none of them."""


RING_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda size: 2 * (size - 1) / size,
    "all_gather": lambda size: (size - 1) / size,
    "reduce_scatter": lambda size: (size - 1) / size,
    "all_to_all": lambda size: (size - 1) / size,
    "gather": lambda size: (size - 1) / size,
    "scatter": lambda size: (size - 1) / size,
}
"""What each rank of a group of `size` sends, as a share of the payload: the factors of bus
bandwidth in doc/PERFORMANCE.md of NVIDIA's nccl-tests. Of all others it is 1."""


class Message(NamedTuple):
    """One collective, as one rank takes part in it."""

    collective: str
    num_bytes: int  # the payload: of the whole that is gathered, reduced, scattered or sent
    group: Any  # a ProcessGroup, or its name

    def sent_bytes(self, size: int) -> int:
        """What one rank sends, in a group of `size` ranks that goes about it in a ring."""
        share = RING_SHARES.get(self.collective)
        return self.num_bytes if share is None else round(self.num_bytes * share(size))


def message_of(
    func: Any, args: Args, kwargs: Kwargs, size_of: Callable[[Any], int]
) -> Message | None:
    """The message that a call comes to; None if it is no collective. `size_of` a group is how many
    ranks it has.
    """
    kind = KINDS.get(plan_of(func).packet)
    if kind is None:
        return None
    group = _group_of(func, args, kwargs)
    num_bytes = sum(t.nbytes for t in _opened(args[kind.payload]))
    return Message(kind.collective, num_bytes * (size_of(group) if kind.per_rank else 1), group)


def _group_of(func: Any, args: Args, kwargs: Kwargs) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in ("process_group", "group_name", "group"):
            return kwargs[argument.name] if argument.name in kwargs else args[position]
    raise AssertionError(f"{func} names no group")


def _opened(value: Any) -> list[torch.Tensor]:
    """Tensors in lists of lists."""
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _opened(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def collective(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Metadata of a collective's results. Real tensors alone are communicated as ever."""
    call = Call(func, args, kwargs)
    call.tensors = _opened([*args, *kwargs.values()])
    if not any(isinstance(t, FakeTensor) for t in call.tensors):
        return func(*args, **kwargs)
    call.device = output_device(call)
    kind = KINDS[call.plan.packet]
    written = tensors_written(call.plan, args, kwargs)
    if kind.written is not None:
        written = _opened(args[kind.written])
    _forget(written)
    if call.plan.packet.startswith("c10d::"):
        return _result(call, kind)
    return wrap(call, run_on_meta(call))


def wait(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``wait_tensor``: what is waited for, itself. Its meta kernel would give another tensor."""
    return args[0] if isinstance(args[0], FakeTensor) else func(*args, **kwargs)


def _forget(written: list[torch.Tensor]) -> None:
    for tensor in written:
        if not isinstance(tensor, FakeTensor):
            raise RealTensorWriteError(
                "a collective would write what fakes hold into a real tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}. Write into its fake twin: "
                "torchfake.fake_like(tensor)"
            )
        tensor._fake_storage.value = None


def _result(call: Call, kind: Kind) -> Any:
    """What was written, where the schema returns it, and work that is done."""
    work = _private.finished_work()
    if len(call.func._schema.returns) == 1 or kind.written is None:
        return work
    return call.args[kind.written], work


def operators() -> list[Any]:
    """The operators of ``KINDS`` that the installed torch has."""
    return _found(*KINDS)


def waits() -> list[Any]:
    """Those that wait for a result."""
    return _found("_c10d_functional::wait_tensor")


def _found(*names: str) -> list[Any]:
    found = []
    for name in names:
        namespace, _, packet = name.partition("::")
        operator = getattr(getattr(torch.ops, namespace), packet, None)
        if operator is not None:
            found.append(operator.default)
    return found

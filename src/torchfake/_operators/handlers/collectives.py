"""Collectives on fakes: the metadata of their results, and how many bytes they would send.

Input: a collective operator and its arguments, fakes among them. Output: the operator's results,
and for ``torchfake.distributed``, which counts bytes, a :class:`Message`. Invariant: nothing is
sent, whatever the process group is, and no result has a known value, since the tensors of other
ranks are unknown.

The ``c10d`` operators write into arguments, although their schemas do not say so; the functional
operators, which DTensor uses, return new tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake._core.schemas import traits_of
from torchfake._operators.interpreter import run_on_meta, wrap
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_arguments, output_device
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.distributed import dtensors
from torchfake.errors import RealTensorWriteError


class Collective(NamedTuple):
    """The signature of one collective operator: which arguments are its payload and its output."""

    name: str  # "all_gather", "reduce_scatter", ...
    payload: int  # the argument whose bytes are the payload: a tensor, or lists of tensors
    written: int | None = None  # the argument that the operator writes
    per_rank: bool = False  # whether the payload is that argument's bytes times the group size


COLLECTIVES: dict[str, Collective] = {
    "c10d::allreduce_": Collective("all_reduce", 0, 0),
    "c10d::allreduce_coalesced_": Collective("all_reduce", 0, 0),
    "c10d::allgather_": Collective("all_gather", 0, 0),
    "c10d::allgather_coalesced_": Collective("all_gather", 0, 0),
    "c10d::_allgather_base_": Collective("all_gather", 0, 0),
    "c10d::allgather_into_tensor_coalesced_": Collective("all_gather", 0, 0),
    "c10d::reduce_scatter_": Collective("reduce_scatter", 1, 0),
    "c10d::_reduce_scatter_base_": Collective("reduce_scatter", 1, 0),
    "c10d::reduce_scatter_tensor_coalesced_": Collective("reduce_scatter", 1, 0),
    "c10d::alltoall_": Collective("all_to_all", 1, 0),
    "c10d::alltoall_base_": Collective("all_to_all", 1, 0),
    "c10d::broadcast_": Collective("broadcast", 0, 0),
    "c10d::reduce_": Collective("reduce", 0, 0),
    "c10d::gather_": Collective("gather", 1, 0, per_rank=True),
    "c10d::scatter_": Collective("scatter", 0, 0, per_rank=True),
    "c10d::send": Collective("send", 0),
    "c10d::recv_": Collective("recv", 0, 0),
    "c10d::recv_any_source_": Collective("recv", 0, 0),
    "_c10d_functional::isend": Collective("send", 0),
    "_c10d_functional::irecv": Collective("recv", 0, 0),
    "_c10d_functional::all_reduce": Collective("all_reduce", 0),
    "_c10d_functional::all_reduce_": Collective("all_reduce", 0, 0),
    "_c10d_functional::all_reduce_coalesced": Collective("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": Collective("all_reduce", 0, 0),
    "_c10d_functional::all_gather_into_tensor": Collective("all_gather", 0, per_rank=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": Collective(
        "all_gather", 0, per_rank=True
    ),
    "_c10d_functional::reduce_scatter_tensor": Collective("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": Collective("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": Collective("all_to_all", 0),
    "_c10d_functional::broadcast": Collective("broadcast", 0),
    "_c10d_functional::broadcast_": Collective("broadcast", 0, 0),
    "_c10d_functional::all_gather_into_tensor_out": Collective("all_gather", 0, per_rank=True),
    "_c10d_functional::reduce_scatter_tensor_out": Collective("reduce_scatter", 0),
    "_c10d_functional_autograd::all_gather_into_tensor": Collective("all_gather", 0, per_rank=True),
    "_c10d_functional_autograd::reduce_scatter_tensor": Collective("reduce_scatter", 0),
    "_c10d_functional_autograd::all_to_all_single": Collective("all_to_all", 0),
    "_dtensor::shard_dim_alltoall": Collective("all_to_all", 0),
}
"""The collectives by operator name. ``barrier`` sends no tensor and is left out."""


RING_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda size: 2 * (size - 1) / size,
    "all_gather": lambda size: (size - 1) / size,
    "reduce_scatter": lambda size: (size - 1) / size,
    "all_to_all": lambda size: (size - 1) / size,
    "gather": lambda size: (size - 1) / size,
    "scatter": lambda size: (size - 1) / size,
}
"""The share of the payload that each rank of a group of `size` sends: the bus bandwidth factors in
doc/PERFORMANCE.md of NVIDIA's nccl-tests. The share of all other collectives is 1."""


class Message(NamedTuple):
    """The bytes that one rank sends and receives in one collective."""

    collective: str  # as in COLLECTIVES; or "permute", if each rank sends to one other
    num_bytes: int  # the payload: the whole tensor that is gathered, reduced, scattered or sent
    group: Any  # a ProcessGroup, or its name

    def sent_bytes(self, size: int) -> int:
        """How many bytes one rank sends, in a group of `size` ranks with ring algorithms."""
        if self.collective == "recv":
            return 0  # the other rank sends
        share = RING_SHARES.get(self.collective)
        return self.num_bytes if share is None else round(self.num_bytes * share(size))


def message_of(
    func: Any, args: Args, kwargs: Kwargs, group_size_of: Callable[[Any], int]
) -> Message | None:
    """The message of a call; None if `func` is no collective.

    `group_size_of` gives the number of ranks of a group.
    """
    spec = COLLECTIVES.get(traits_of(func).packet)
    if spec is None:
        return None
    group = _group_of(func, args, kwargs)
    num_bytes = sum(t.nbytes for t in flattened(args[spec.payload]))
    name = "permute" if spec.name == "all_to_all" and _has_one_receiver(func, args) else spec.name
    return Message(name, num_bytes * (group_size_of(group) if spec.per_rank else 1), group)


def _has_one_receiver(func: Any, args: Args) -> bool:
    """Whether an all-to-all sends everything to one rank: a step of a ring (``permute_tensor``)."""
    names = [argument.name for argument in func._schema.arguments]
    if "input_split_sizes" not in names or names.index("input_split_sizes") >= len(args):
        return False
    sizes = args[names.index("input_split_sizes")]
    return len(sizes) > 1 and sum(map(bool, sizes)) == 1


def _group_of(func: Any, args: Args, kwargs: Kwargs) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in ("process_group", "group_name", "group"):
            return kwargs[argument.name] if argument.name in kwargs else args[position]
    raise AssertionError(f"{func} names no group")


def flattened(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, which c10d's operators take."""
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flattened(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def run_collective(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The results of a collective on fakes. Without fakes, real tensors are communicated."""
    call = Call(func, args, kwargs)
    call.tensors = flattened([*args, *kwargs.values()])
    if not any(isinstance(t, FakeTensor) for t in call.tensors):
        return func(*args, **kwargs)
    call.device = output_device(call)
    spec = COLLECTIVES[call.traits.packet]
    written = mutated_arguments(call.traits, args, kwargs)
    if spec.written is not None:
        written = flattened(args[spec.written])
    _forget_values(written)
    if call.traits.packet.startswith("c10d::"):
        return _c10d_result(call, spec)
    return wrap(call, run_on_meta(call))


def wait_tensor(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``wait_tensor`` returns its argument itself; the meta kernel would return another tensor."""
    return args[0] if isinstance(args[0], FakeTensor) else func(*args, **kwargs)


def _forget_values(written: list[torch.Tensor]) -> None:
    for tensor in written:
        if not isinstance(tensor, FakeTensor):
            raise RealTensorWriteError(
                "a collective would write what fakes hold into a real tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}. Write into its fake copy: "
                "torchfake.fake_like(tensor)"
            )
        tensor._fake_storage.value = None


def _c10d_result(call: Call, spec: Collective) -> Any:
    """The written argument, if the schema returns one, and completed work."""
    work = dtensors.completed_work()
    if len(call.func._schema.returns) == 1 or spec.written is None:
        return work
    return call.args[spec.written], work


WAIT = "_c10d_functional::wait_tensor"
"""The operator that waits for the result of a collective."""

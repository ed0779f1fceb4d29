"""New operations of the graph, and the contents that they leave in storages.

Input: an operation with its arguments, before and after it has run on fakes. Output: an
:class:`~torchfake._graph.operations.Op`, and new contents of each storage that the operation made
or wrote. Invariant: an operation reads the contents that its arguments had before it ran; a write
that covers a storage reads nothing, so the overwritten contents are freed.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices, memory, modes
from torchfake._core.metadata import metadata_of, with_mark
from torchfake._core.schemas import LIFTS, OpTraits, with_repeats
from torchfake._core.source_location import RawLocation
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.externals import External
from torchfake._graph.operations import Cell, Contents, Op, Output, Read
from torchfake._operators.argument_checks import refuse_nested
from torchfake._operators.operator_call import (
    NON_TENSOR_TYPES,
    Args,
    Kwargs,
    mutated_arguments,
    tensors_in,
)
from torchfake._random import draw_sizes
from torchfake._recording import generator_sync
from torchfake._recording.arguments import CallArguments, deferred_fakes
from torchfake._tensor import known_values
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import numerics, zero_tensors
from torchfake.errors import RecordError

# Before the operation runs.


def new_op(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, location: RawLocation | None
) -> Op:
    """Make the operation of the graph for a call that has not run yet."""
    recorded = [arg if type(arg) in NON_TENSOR_TYPES else recorded_arg(func, arg) for arg in args]
    recorded = with_repeats(func, args, recorded)
    if traits.overwrites_first and type(recorded[0]) is Read:
        recorded[0] = Read(contents_before_write(args[0]), args[0]._fake_meta)
    by_name = {}
    if kwargs:
        by_name = {n: recorded_arg(func, arg) for n, arg in kwargs.items() if n != "generator"}
    if traits.packet in LIFTS:
        func = torch.ops.aten.clone.default
    op = Op(func, tuple(recorded), by_name, location)
    if traits.product_kind is not None:
        inside = modes.thread.cast_inside
        op.product_settings = numerics.current_for_products(traits.product_kind, inside)
    return op


def recorded_arg(func: Any, arg: Any) -> Any:
    """The recorded form of an argument of `func`.

    Raises:
        RecordError: if the argument cannot be kept until the operation is replayed.
    """
    if type(arg) in FAKE_TYPES or isinstance(arg, FakeTensor):
        deferred: Any = arg._fake_storage.deferred
        if deferred is None:
            return External(known_values.read_value(arg, "an operation").clone())
        return Read(deferred.contents, arg._fake_meta)
    if type(arg) in NON_TENSOR_TYPES or isinstance(arg, (int, float, complex, str)):
        return arg
    if isinstance(arg, torch.Tensor):
        if zero_tensors.is_zero_tensor(arg):  # without memory: metadata are all of it
            return Read(Cell(0, arg.device), metadata_of(arg, arg.device))
        if arg.is_nested:
            refuse_nested(func, (), {})
        return External(arg)
    if isinstance(arg, (list, tuple)):
        return [recorded_arg(func, item) for item in arg]
    if isinstance(arg, torch.device):
        return devices.resolve(arg)  # C++ passes carriers
    raise RecordError(
        f"{func} was given a {type(arg).__name__}, which cannot be kept until the deferred tensor "
        "is materialized: do this after materialize_module, or outside of deferred_init"
    )


def contents_before_write(fake: FakeTensor) -> Contents:
    """The contents that an operation reads when it overwrites `fake`: uninitialized memory if
    `fake` covers its storage, else the storage's contents.
    """
    deferred: Any = fake._fake_storage.deferred
    cell: Cell = deferred.cell
    if memory.covers(fake._fake_meta, cell.num_bytes):
        return cell
    contents: Contents = deferred.contents
    return contents


# After the operation has run.


def add_to_graph(
    op: Op, traits: OpTraits, result: Any, arguments: CallArguments, args: Args, kwargs: Kwargs
) -> Any:
    """Record that `op` made the new storages in `result`, and wrote the mutated arguments."""
    op.outputs = defer_outputs(result, op, arguments, op.location)
    if not traits.mutated_names and not traits.is_random:
        return result
    mutated = deferred_fakes(mutated_arguments(traits, args, kwargs))
    if traits.is_random and (op.outputs or mutated):
        record = mutated[0]._fake_meta if mutated else op.outputs[0].record
        num_words = draw_sizes.num_words_drawn(op.func, args, record)
        generator_sync.record_draws(op, kwargs.get("generator"), record, num_words)
    for tensor in mutated:
        add_write(op, tensor._fake_storage)
    if kwargs and mutated:
        outs = {n: deferred_fakes(tensors_in((kwargs.get(n),), {})) for n in traits.mutated_names}
        op.outs_after = {
            name: [out._fake_meta for out in each] for name, each in outs.items() if each
        }
    return result


def defer_outputs(
    result: Any, op: Op | None, arguments: CallArguments, location: RawLocation | None
) -> tuple[Output, ...]:
    """Make results with new storages deferred, and return them as outputs of `op`."""
    if isinstance(result, FakeTensor):
        return _defer_output(None, result, op, arguments, location)
    outputs: tuple[Output, ...] = ()
    if isinstance(result, (list, tuple)):
        for i, item in enumerate(result):
            if isinstance(item, FakeTensor):
                outputs += _defer_output(i, item, op, arguments, location)
    return outputs


def _defer_output(
    position: int | None,
    fake: FakeTensor,
    op: Op | None,
    arguments: CallArguments,
    location: RawLocation | None,
) -> tuple[Output, ...]:
    storage = fake._fake_storage
    if storage.deferred is not None:  # a view of an argument, or of another output
        if fake._fake_meta.mark != storage.deferred.mark:
            fake._fake_meta = with_mark(fake._fake_meta, storage.deferred.mark)
        return ()
    for tensor in arguments.tensors:
        if isinstance(tensor, FakeTensor) and tensor._fake_storage is storage:
            return ()
    cell = defer(fake, op, arguments.mark, location)
    return (Output(position, cell, fake._fake_meta),)


def defer(fake: FakeTensor, op: Op | None, mark: int, location: RawLocation | None) -> Cell:
    """Make a new fake deferred: its storage has the contents that `op` leaves, or is uninitialized
    if `op` is None.
    """
    storage = fake._fake_storage
    storage.value, storage.location = None, location
    cell = Cell(storage.num_bytes, storage.device)
    storage.deferred = DeferredState(cell, op, mark)
    fake._fake_meta = with_mark(fake._fake_meta, mark)
    return cell


def add_write(op: Op, storage: Storage) -> None:
    """Give a deferred storage the contents that `op` leaves in it, which may have enlarged it."""
    deferred: Any = storage.deferred
    storage.value = None
    deferred.op, cell = op, deferred.cell
    op.add_written(cell)
    cell.num_bytes = max(cell.num_bytes, storage.num_bytes)

"""Execution of one recorded operation on real tensors.

Input: operations, each after the operations whose results it reads. Output: real storages that hold
the written values. Invariant: only storages of the replay are written. Draws come from the replay's
own generators; for the few operators without a ``generator`` argument the global generator is
borrowed and restored.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.memory import (
    allocate_storage,
    flat_view,
    pins_memory,
    replay_device,
    view_of,
)
from torchfake._core.metadata import Metadata
from torchfake._core.schemas import overload_with_generator, with_repeats
from torchfake._graph.externals import External
from torchfake._graph.operations import Cell, Op, Output, Read
from torchfake._random.generator_memory import call_drawing_nothing
from torchfake._random.generator_pool import GeneratorPool
from torchfake._torch import backends, numerics, subclass, zero_tensors
from torchfake.errors import ReplayError

_device = torch.device  # in a mode with fake devices, the name refers to a stand-in


class Storages(dict[Cell, torch.UntypedStorage]):
    """The real storages of cells: each is allocated, uninitialized, when it is first looked up."""

    def __missing__(self, cell: Cell) -> torch.UntypedStorage:
        try:
            storage = self[cell] = allocate_storage(cell.num_bytes, cell.device)
        except RecursionError:
            raise
        except RuntimeError as error:
            raise no_memory_error(cell, error) from error
        return storage


def no_memory_error(cell: Cell, error: Exception) -> ReplayError:
    """The exception to raise from `error`, which the allocation of a cell has raised."""
    return ReplayError(
        f"there is no memory for {cell.num_bytes:,} bytes on {cell.device}: {error}. "
        "save_materialized writes files without it; a smaller dtype needs less"
    )


def execute(op: Op, storages: Storages, generators: GeneratorPool) -> None:
    """Execute `op`, or take its cached results.

    Raises:
        ReplayError: naming the operation, if it cannot be replayed, or failed.
    """
    if op.cached is not None:
        for cell, storage in op.cached.items():
            storages[cell] = storage if op.gives_up_cached else storage.clone()
        return
    check_replayable(op)
    try:
        with numerics.applied(op.numerics, op.product_settings):
            result = _call(op, storages, generators)
        if op.outputs:
            _store_results(op, result, storages)
    except (ReplayError, RecursionError):
        raise
    except Exception as error:
        raise replay_error(op, error) from error


def _store_results(op: Op, result: Any, storages: Storages) -> None:
    for output in op.outputs:
        value = result if output.position is None else result[output.position]
        if value is None or output.position == _WORKSPACES.get(op.func, -1):
            continue  # only a backward pass would read it, and none is recorded
        _check_shape(op, value, output.record)
        _store_result(output, value, storages)


def _check_shape(op: Op, value: torch.Tensor, record: Metadata) -> None:
    if value.shape != record.size:
        raise ReplayError(
            f"{op} gave a result of shape {list(value.shape)} when it was replayed, and one of "
            f"shape {list(record.size)} was recorded: the shape depends on values. Read "
            "them before (item(), tolist()), or do this after materialize_module"
        )


def _restore_layouts(op: Op, kwargs: dict[str, Any], storages: Storages) -> None:
    """Let each ``out=`` lie as recorded: later operations read it so. A kernel that has resized it,
    or exchanged its memory, may have left it otherwise than was predicted.
    """
    for name, records in op.outs_after.items():
        reads, outs = op.kwargs[name], kwargs[name]
        pairs = zip(reads, outs, strict=True) if type(outs) is list else ((reads, outs),)
        written = [(out, read.contents.cell) for read, out in pairs if type(read) is Read]
        for (out, cell), record in zip(written, records, strict=True):
            _check_shape(op, out, record)
            place, memory = (out.stride(), out.storage_offset()), out.untyped_storage()
            is_same = place == (record.stride, record.offset)
            if not is_same or subclass.storage_key(memory) != subclass.storage_key(storages[cell]):
                values = out.clone()  # before its memory is written
                view_of(storages[cell], record).copy_(values)


_WORKSPACES = {torch.ops.aten.mkldnn_rnn_layer.default: 3}
"""The position of a result whose size only the kernel knows, and whose readers are not recorded."""


def _call(op: Op, storages: Storages, generators: GeneratorPool) -> Any:
    args = with_repeats(op.func, op.args, _real_argument(op.args, storages))
    kwargs = op.kwargs and {n: _real_argument(arg, storages) for n, arg in op.kwargs.items()}
    func, kwargs = _without_pinning(op.func, kwargs)
    if op.draw is None:
        result = call_drawing_nothing(func, args, kwargs, ReplayError)
    else:
        result = _call_with_draws(op, args, kwargs, generators)
    if kwargs:
        _restore_layouts(op, kwargs, storages)
    return result


_PIN = torch.ops.aten._pin_memory.default


def _without_pinning(func: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An operator and its arguments, in memory that is not pinned where the machine cannot pin: a
    program may be recorded for a GPU that is not there.
    """
    if (func is _PIN or kwargs.get("pin_memory")) and not pins_memory():
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        return torch.ops.aten.clone.default if func is _PIN else func, kwargs
    return func, kwargs


def check_replayable(op: Op) -> None:
    """Refuse an operation that is known to give other values than it gave in eager mode."""
    if op.unreplayable_reason is not None:
        raise ReplayError(op.unreplayable_reason)
    if not op.numerics.rounds_to_nearest:
        raise ReplayError(
            f"{op} was recorded while C's rounding mode (fesetround) was not to nearest, which is "
            "not replayed: restore it before, or do this after materialize_module"
        )
    for external in op.arguments_of(External):
        if external.is_changed:
            raise ReplayError(
                f"{op} was recorded with a real tensor of shape {list(external.tensor.shape)}, "
                "which was written in place since. The values that it had are lost: pass a clone() "
                "of a tensor that is written later, or call materialize_module before it is"
            )


def replay_error(op: Op, error: Exception) -> ReplayError:
    """The exception to raise from `error`, which `op` has raised."""
    return ReplayError(f"{op} failed during replay: {error}")


def _real_argument(arg: Any, storages: Storages) -> Any:
    if type(arg) is Read:
        return view_of(storages[arg.contents.cell], arg.record)
    if type(arg) is External:
        return arg.tensor
    if type(arg) in (list, tuple):
        return [_real_argument(item, storages) for item in arg]
    if type(arg) is _device:
        return replay_device(arg)
    return arg


def _store_result(output: Output, result: torch.Tensor, storages: Storages) -> None:
    """Make the storage of `result` the storage of the output's cell. Copy the values instead if the
    kernel has chosen another layout than was recorded, a lazy conjugate, or a zero tensor.
    """
    record, cell = output.record, output.cell
    if record.zero:  # recorded views and copies of the zero tensor read zeros
        flat_view(storages[cell], torch.uint8).zero_()
        return
    same = result.stride() == record.stride and result.storage_offset() == record.offset
    same = same and result.is_conj() == record.conj and result.is_neg() == record.neg
    has_memory = not zero_tensors.is_zero_tensor(result)
    if same and has_memory and result.untyped_storage().nbytes() == cell.num_bytes:
        storages[cell] = result.untyped_storage()
    else:
        view_of(storages[cell], record).copy_(result)


def _call_with_draws(
    op: Op, args: list[Any], kwargs: dict[str, Any], generators: GeneratorPool
) -> Any:
    """Call a random operator with a generator at the position that was recorded."""
    generator = generators.at(op.draw)
    result = _call_with_generator(generator, op.func, args, kwargs)
    if op.draw.num_words is None:
        op.draw.end_state = generator.get_state()
        generators.advance_to(op.draw.end_state)
    else:
        generators.advance_by(op.draw.num_words)
    return result


def _call_with_generator(
    generator: torch.Generator, func: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Call `func` with draws from `generator`, whether or not it has a parameter for one."""
    is_operator = hasattr(func, "_schema")
    overload = overload_with_generator(func) if is_operator else _init_with_generator(func)
    if overload is not None:
        return overload(*args, **{**kwargs, "generator": generator})
    with backends.default_generator_kept(generator.device) as default:
        default.set_state(generator.get_state())
        result = func(*args, **kwargs)
        generator.set_state(default.get_state())
        return result


def _init_with_generator(function: Any) -> Any:
    """`function`, of torch.nn.init, if all of its draws are from its ``generator``; else None."""
    return function if function is not torch.nn.init.sparse_ else None

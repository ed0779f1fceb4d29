"""Operations on deferred fakes, written down as they are done.

Enters: an operation with a deferred fake among its arguments, or any in a deferred mode. Leaves:
its result, and an :class:`Op` in the graph behind each storage that it made or wrote. Invariant:
what depends on values that never were (a plain fake's) is plain itself, or refuses to be replayed;
it is never replayed with other values.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from torchfake import _device, _generators, _origin, _private, _replay, _state, _values, _words
from torchfake._call import ATOMS, Args, Kwargs, tensors_in, tensors_written
from torchfake._graph import Cell, Contents, Deferred, External, Made, Op, Read
from torchfake._metadata import (
    PLAIN,
    Metadata,
    Storage,
    contiguous_stride,
    intern,
    is_dense,
    marked,
)
from torchfake._ops import LIFTS, TAKES_MASKS, OpPlan, plan_of
from torchfake._rules import has_rule
from torchfake._spmd import copies_of, result_of
from torchfake._tensor import FakeTensor, fake_twin, is_deferred_fake
from torchfake.errors import RecordError

Run = Callable[[Any, Args, Kwargs], Any]

_COPY = torch.ops.aten.copy_.default


def concerns(args: Args, kwargs: Kwargs) -> bool:
    """Whether there is a deferred fake among the arguments."""
    return any(is_deferred_fake(tensor) for tensor in tensors_in(args, kwargs))


def _deferred_ones(tensors: list[torch.Tensor]) -> list[FakeTensor]:
    return [t for t in tensors if is_deferred_fake(t)]  # type: ignore[misc]


def record(
    func: Any, plan: OpPlan, args: Args, kwargs: Kwargs, run: Run, mode_mark: int = PLAIN
) -> Any:
    """Do `func` by ``run(func, args, kwargs)`` and write it down.

    Raises:
        RecordError: if an argument cannot be kept.
    """
    if plan.only_looks:
        return run(func, args, kwargs)
    if plan.is_blank:
        result = run(func, args, kwargs)
        if isinstance(result, FakeTensor):
            _defer(result, None, mode_mark, _where()[0])  # there is nothing to do for it
        return result
    if plan.is_collective:
        for pair in copies_of(plan.packet, args):
            record(_COPY, plan_of(_COPY), pair, {}, run, mode_mark)
        return result_of(args)
    if plan.is_random and len(args) > 1:
        args, kwargs = _generator_by_name(func, args, kwargs)
    given = _Given(args, kwargs, mode_mark)
    if given.has_made:
        args, kwargs = tuple(_real_if_made(arg) for arg in args), _real_if_made(kwargs)
        given = _Given(args, kwargs, mode_mark)
    if not given.tensors and not plan.gives_tensors:
        return run(func, args, kwargs)  # the profiler's, for instance
    if not given.has_deferred and (given.mark == PLAIN or given.has_real):
        if not _makes_deferred(plan, given):
            return _on_real_ones(func, args, kwargs, run)
    place, frame, is_sharding = _where()
    if frame is not None:
        return _in_step(frame, func, args, kwargs, run)
    _state.thread.step = None
    if plan.is_uninitialized and not plan.written_names:
        result = run(func, args, kwargs)
        _name_new(result, None, given, place)  # there is nothing to do for it
        return result
    if given.is_unknown:
        return _spoil(func, run(func, args, kwargs), tensors_written(plan, args, kwargs), place)
    if _asks_for_values(func, plan, args, given):
        return _now(func, args, kwargs, given, place)
    op = _op(func, plan, args, kwargs, place)
    op.is_sharding = is_sharding
    return _write_down(op, plan, run(func, args, kwargs), given, args, kwargs)


def _generator_by_name(func: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The same call with its generator out of the way of what is kept."""
    for i, arg in enumerate(args):
        if type(arg) is torch.Generator:
            named = {a.name: v for a, v in zip(func._schema.arguments[i:], args[i:], strict=False)}
            return args[:i], {**named, **kwargs}
    return args, kwargs


class _Given:
    """What there is among the arguments of a call, seen at one go."""

    __slots__ = ("has_deferred", "has_made", "has_real", "is_unknown", "mark", "tensors")

    def __init__(self, args: Args, kwargs: Kwargs, mark: int) -> None:
        self.tensors = tensors_in(args, kwargs)
        self.has_deferred = self.has_made = self.has_real = False
        self.is_unknown = False  # there are values that never were: a plain fake's
        self.mark = mark
        for tensor in self.tensors:
            if type(tensor) is not FakeTensor and not isinstance(tensor, FakeTensor):
                self.has_real = self.has_real or not tensor.is_meta
                self.is_unknown = self.is_unknown or tensor.is_meta
                continue
            storage = tensor._fake_storage
            recorded: Any = storage.recorded
            if recorded is None:
                self.is_unknown = self.is_unknown or storage.value is None
                continue
            self.has_deferred = True
            self.has_made = self.has_made or recorded.real is not None
            self.mark = max(self.mark, recorded.mark)


# What is not recorded.


def _real_if_made(arg: Any) -> Any:
    """An argument, with fakes whose storage is real by now replaced by real tensors."""
    if isinstance(arg, dict):
        return {name: _real_if_made(item) for name, item in arg.items()}
    if isinstance(arg, (list, tuple)):
        return [_real_if_made(item) for item in arg]
    if not _is_made(arg):
        return arg
    return _replay.value_of(arg._fake_storage.recorded, arg._fake_meta)


def _is_made(tensor: Any) -> bool:
    return is_deferred_fake(tensor) and tensor._fake_storage.recorded.real is not None


def _is_real(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not tensor.is_meta


def _makes_deferred(plan: OpPlan, given: _Given) -> bool:
    """Whether an operation on real tensors, in a deferred mode, gives something new."""
    if given.mark == PLAIN or not plan.gives_tensors:
        return False
    return plan.packet in LIFTS or not (plan.is_view or plan.written_names)


def _on_real_ones(func: Any, args: Args, kwargs: Kwargs, run: Run) -> Any:
    """An operation that real tensors see as ever, though they may draw after what is recorded."""
    if plan_of(func).is_random:
        _generators.settle_all()
    if _state.current() is not None:
        return run(func, args, kwargs)
    return func(*args, **kwargs)


# Initialisers that are recorded as one step.


def _where() -> tuple[_origin.Place | None, types.FrameType | None, bool]:
    """The line of the user's code, the call of an initialiser between here and there, and whether
    there is something of torch's between that shards.
    """
    frame: types.FrameType | None = sys._getframe(2)
    steps = _private.init_steps()
    known, sharding = _origin.is_library.known, _origin.is_sharding.known
    is_sharding = False
    while frame is not None:
        code = frame.f_code
        key = id(code)
        if not (known[key] if key in known else _origin.is_library(code)):
            return (code, frame.f_lasti), None, is_sharding
        if sharding[key]:
            is_sharding = True
        elif key in steps and _may_be_step(frame):
            return None, frame, False
        frame = frame.f_back
    return None, None, is_sharding


def _may_be_step(frame: types.FrameType) -> bool:
    if frame is _state.thread.step:
        return True
    values = frame.f_locals
    if not is_deferred_fake(values.get("tensor")) or _is_made(values["tensor"]):
        return False
    if any(isinstance(v, torch.Tensor) and _is_unknown(v) for v in values.values()):
        return False
    in_mode = _state.current() is not None
    return frame.f_code.co_name != "sparse_" or (in_mode and values.get("generator") is None)


def _is_unknown(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to replay for a tensor: a plain fake's values never were."""
    if not isinstance(tensor, FakeTensor):
        return tensor.is_meta
    return tensor._fake_storage.recorded is None and tensor._fake_storage.value is None


def _in_step(frame: types.FrameType, func: Any, args: Args, kwargs: Kwargs, run: Run) -> Any:
    if frame is not _state.thread.step:
        _record_step(frame)
        _state.thread.step = frame
    return run(func, args, kwargs)


def _record_step(frame: types.FrameType) -> None:
    """Record the call of `frame` as one operation that writes the whole of its tensor."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    tensor, generator = values["tensor"], values.get("generator")
    function = _private.init_steps()[id(code)]
    place = _origin.here(3)
    args = [_kept(function, values[name]) for name in names if name not in ("tensor", "generator")]
    target = Read(_before_write(tensor), tensor._fake_meta)
    op = Op(function, (target, *args), {}, place)
    meta = tensor._fake_meta
    taken = None
    if code.co_name == "orthogonal_":
        size = (meta.size[0], tensor.numel() // meta.size[0])
        taken = _words.words_of_normal(_in_order(meta, size))
    _generators.take_draws(op, generator, meta, taken)
    _write(op, tensor._fake_storage)


def _in_order(meta: Metadata, size: tuple[int, ...]) -> Metadata:
    return intern(size, contiguous_stride(size), 0, meta.dtype, meta.device)


# Values that are asked for while recording.


def _asks_for_values(func: Any, plan: OpPlan, args: Args, given: _Given) -> bool:
    """Whether the outcome is a matter of values, or written where somebody real sees it."""
    if plan.asks_values and given.tensors:
        if plan.packet in TAKES_MASKS:
            return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return not plan.gives_tensors or not has_rule(func)
    return given.has_real and any(map(_is_real, tensors_written(plan, args, {})))


def _now(func: Any, args: Args, kwargs: Kwargs, given: _Given, place: _origin.Place | None) -> Any:
    """Do `func` on values, replaying what those take; what it makes is recorded all the same."""
    plan = plan_of(func)
    op = _op(func, plan, args, kwargs, place) if plan.gives_tensors else None
    written = tensors_written(plan, args, kwargs)
    if any(map(_is_real, written)) and given.mark and _state.current() is None:
        _have_memory(given.tensors)
        return func(*map(_real_if_made, args), **_real_if_made(kwargs))
    with _private.as_eager():
        values = {id(t): _values.read(t, "an operation").clone() for t in _deferred_ones(written)}
        real = [_value(arg, values) for arg in args]
        result = func(*real, **{name: _value(arg, values) for name, arg in kwargs.items()})
    if op is not None and not any(map(_is_real, written)):
        return _write_down(op, plan, _fakes_of(result), given, args, kwargs)
    for fake in _deferred_ones(written):  # a list with real ones beside it
        _set(fake, values[id(fake)], place)
    return result


def _have_memory(tensors: list[torch.Tensor]) -> None:
    """Give deferred tensors their memory, while what they are beside is real: an optimizer's state
    was made while its parameters were deferred, and is written at each step from now on.
    """
    for fake in _deferred_ones(tensors):
        recorded: Any = fake._fake_storage.recorded
        if recorded.real is None:
            _replay.replay([recorded.contents], recorded.take)


def _fakes_of(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return fake_twin(result)
    return type(result)(_fakes_of(item) for item in result)


def _value(arg: Any, written: dict[int, torch.Tensor]) -> Any:
    if isinstance(arg, FakeTensor):
        value = written.get(id(arg))
        return _values.read(arg, "an operation") if value is None else value
    if isinstance(arg, (list, tuple)):
        return [_value(item, written) for item in arg]
    return arg


def _set(fake: FakeTensor, value: torch.Tensor, place: _origin.Place | None) -> None:
    """Record that `fake` now is `value`, which nobody else has."""
    target = Read(_before_write(fake), fake._fake_meta)
    op = Op(torch.ops.aten.copy_.default, (target, External(value)), {}, place)
    _write(op, fake._fake_storage)


# Recording.


def _op(func: Any, plan: OpPlan, args: Args, kwargs: Kwargs, place: _origin.Place | None) -> Op:
    """The operation with what is kept of its arguments. Nothing has changed yet."""
    kept = [arg if type(arg) in ATOMS else _kept(func, arg) for arg in args]
    if plan.overwrites and type(kept[0]) is Read:
        kept[0] = Read(_before_write(args[0]), args[0]._fake_meta)
    kept_by_name = {}
    if kwargs:
        kept_by_name = {n: _kept(func, arg) for n, arg in kwargs.items() if n != "generator"}
    if plan.packet in LIFTS:
        func = torch.ops.aten.clone.default
    return Op(func, tuple(kept), kept_by_name, place)


def _kept(func: Any, arg: Any) -> Any:
    if type(arg) is FakeTensor or isinstance(arg, FakeTensor):
        recorded: Any = arg._fake_storage.recorded
        if recorded is None:
            return External(_values.read(arg, "an operation").clone())
        return Read(recorded.contents, arg._fake_meta)
    if type(arg) in ATOMS or isinstance(arg, (int, float, complex, str)):
        return arg
    if isinstance(arg, torch.Tensor):
        return External(arg)
    if isinstance(arg, (list, tuple)):
        return [_kept(func, item) for item in arg]
    if isinstance(arg, torch.device):
        return _device.resolve(arg)  # C++ names carriers
    raise RecordError(
        f"{func} was given a {type(arg).__name__}, which cannot be kept until the deferred tensor "
        "is materialized: do this after materialize_module, or outside of deferred_init"
    )


def _write_down(
    op: Op, plan: OpPlan, result: Any, given: _Given, args: Args, kwargs: Kwargs
) -> Any:
    """Put `op`, which has given `result`, behind all that it made and wrote."""
    op.made = _name_new(result, op, given, op.place)
    written = _deferred_ones(tensors_written(plan, args, kwargs))
    if plan.is_random and (op.made or written):
        record = written[0]._fake_meta if written else op.made[0].record
        _generators.take_draws(
            op, kwargs.get("generator"), record, _words.words_drawn(op.func, args, record)
        )
    for tensor in written:
        _write(op, tensor._fake_storage)
    return result


def _name_new(
    result: Any, op: Op | None, given: _Given, place: _origin.Place | None
) -> tuple[Made, ...]:
    """Make deferred what is new among the results, and name it."""
    if isinstance(result, FakeTensor):
        return _name_one(None, result, op, given, place)
    made: tuple[Made, ...] = ()
    if isinstance(result, (list, tuple)):
        for i, item in enumerate(result):
            if isinstance(item, FakeTensor):
                made += _name_one(i, item, op, given, place)
    return made


def _name_one(
    i: int | None,
    fake: FakeTensor,
    op: Op | None,
    given: _Given,
    place: _origin.Place | None,
) -> tuple[Made, ...]:
    storage = fake._fake_storage
    if storage.recorded is not None:
        fake._fake_meta = marked(fake._fake_meta, storage.recorded.mark)  # beside one just named
        return ()
    if any(storage is t._fake_storage for t in given.tensors if isinstance(t, FakeTensor)):
        return ()
    cell = _defer(fake, op, given.mark, place)
    return (Made(i, cell, fake._fake_meta),)


def _defer(fake: FakeTensor, op: Op | None, mark: int, place: _origin.Place | None) -> Cell:
    """Make deferred what was just made, by `op` if that is more than memory."""
    storage = fake._fake_storage
    storage.value, storage.place = None, place
    cell = Cell(storage.num_bytes, storage.device)
    storage.recorded = Deferred(Contents(cell, op), mark)
    fake._fake_meta = marked(fake._fake_meta, mark)
    return cell


def _spoil(func: Any, result: Any, written: list[torch.Tensor], place: _origin.Place | None) -> Any:
    """What was written has no values any more, for such took part as never were."""
    for tensor in _deferred_ones(written):
        op = Op(func, (), {}, place)
        op.refusal = (
            f"a deferred {_values.describe(tensor)}, was written by {op} with values that do not "
            "exist, for a plain fake tensor took part. Do such a pass in eval(), or on a "
            "copy.deepcopy of the module"
        )
        _write(op, tensor._fake_storage)
    return result


def _before_write(fake: FakeTensor) -> Contents:
    """What an operation that overwrites `fake` finds: nothing that matters, if that is all."""
    recorded: Any = fake._fake_storage.recorded
    contents: Contents = recorded.contents
    if _covers(fake._fake_meta, contents.cell.num_bytes):
        return Contents(contents.cell)
    return contents


@lru_cache(maxsize=4096)
def _covers(record: Metadata, num_bytes: int) -> bool:
    """Whether a fake of `record` is each byte of its storage, once."""
    return record.offset == 0 and record.num_bytes == num_bytes and is_dense(record)


def _write(op: Op, storage: Storage) -> None:
    recorded: Any = storage.recorded
    storage.value = None
    cell = recorded.contents.cell
    recorded.contents = Contents(cell, op)
    op.written = (*op.written, cell)


def end_step() -> None:
    """Let go of the last initialiser's call."""
    _state.thread.step = None

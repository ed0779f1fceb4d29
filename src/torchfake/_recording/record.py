"""Recording of an operation on deferred fakes.

Input: an operation with a deferred fake among its arguments, or any operation in a deferred mode.
Output: its result, and an :class:`~torchfake._graph.operations.Op` as the source of each storage
that the operation made or wrote. Invariant: a result that depends on values of a plain fake, which
do not exist, is a plain fake, or its replay raises; a replay never gives other values than eager.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._core.memory import number_of_empty_memory
from torchfake._core.metadata import DEFERRED, DEFERRED_AS_META, PLAIN, intern
from torchfake._core.schemas import LIFTS, RESIZES, OpTraits, traits_of, with_repeats
from torchfake._core.source_location import RawLocation
from torchfake._eager_checks.values import check_recorded_values, checks_values
from torchfake._graph.operations import Op, recording_lock
from torchfake._operators.data_dependent import take_place
from torchfake._operators.operator_call import Args, Kwargs, mutated_arguments, tensors_in
from torchfake._random import mt19937
from torchfake._recording import generator_sync
from torchfake._recording.arguments import (
    CallArguments,
    RunOnFakes,
    count_writes,
    deferred_fakes,
    fake_aliases,
    is_alias,
    with_real_tensors,
)
from torchfake._recording.graph_builder import (
    add_to_graph,
    add_write,
    defer,
    defer_outputs,
    new_op,
)
from torchfake._recording.initializers import (
    find_call_site,
    is_called_by_to_empty,
    run_in_initializer,
)
from torchfake._recording.local_collectives import (
    local_copies,
    result_of_collective,
    run_on_real_values,
)
from torchfake._recording.value_reads import needs_values, run_draw, run_on_values
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake, new_fake
from torchfake._torch import backends

_COPY = torch.ops.aten.copy_.default
_EMPTY_LIKE = torch.ops.aten.empty_like.default
_TO_COPY = torch.ops.aten._to_copy.default
_FILL = torch.ops.aten.fill_.Scalar
_LIKE_FIRST = frozenset(
    {"aten::full_like", "aten::ones_like", "aten::zeros_like", "aten::rand_like",
     "aten::randn_like", "aten::randint_like", "aten::new_full", "aten::new_ones",
     "aten::new_zeros"}
)  # fmt: skip
"""Operators that read only the metadata of their first argument, not its values."""


def record(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int = PLAIN
) -> Any:
    """Run `func` by ``run(func, args, kwargs)``, and add it to the graph, unless it reads values,
    is on real memory, or leaves nothing to replay.

    Raises:
        RecordError: if an argument cannot be kept until the operation is replayed.
    """
    if traits.is_metadata_only:
        return run(func, args, kwargs)
    if traits.is_collective:  # may wait for another thread
        return _record_collective(func, traits, args, kwargs, run, mode_mark)
    with recording_lock:
        return _record(func, traits, args, kwargs, run, mode_mark)


def _record_collective(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int
) -> Any:
    result = run_on_real_values(func, args, kwargs)
    if result is not None:
        return result
    for pair in local_copies(traits.packet, args):
        record(_COPY, traits_of(_COPY), pair, {}, run, mode_mark)
    return result_of_collective(args)


def _record(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int
) -> Any:
    if traits.is_empty_factory:
        result = run(func, args, kwargs)
        if isinstance(result, FakeTensor):
            defer(result, None, mode_mark, find_call_site()[0])  # no operation to replay
            _fill_if_deterministic(result, 0, run)
        return result
    if traits.is_random and len(args) > 1:
        args, kwargs = _with_generator_by_name(func, args, kwargs)
    arguments = CallArguments(args, kwargs, mode_mark)
    if arguments.mark == DEFERRED_AS_META != mode_mark and _names_device(traits, kwargs):
        arguments.mark = DEFERRED
    if arguments.has_materialized:
        return _record_on_real_memory(func, traits, args, kwargs, run, mode_mark)
    if not arguments.tensors and not traits.returns_tensors:
        return run(func, args, kwargs)  # an operator of the profiler, for instance
    if not arguments.has_deferred and (arguments.mark == PLAIN or arguments.has_real):
        if not _makes_deferred(traits, arguments, args):
            return _run_on_real_tensors(func, args, kwargs, run)
    location, initializer_frame, is_sharding = find_call_site()
    if initializer_frame is not None:
        return run_in_initializer(initializer_frame, func, args, kwargs, run)
    modes.thread.initializer_frame = None
    if traits.returns_uninitialized and not traits.mutated_names:
        is_kept = arguments.has_deferred and not backends.fills_empty_memory()
        if func is _EMPTY_LIKE and is_kept and is_called_by_to_empty():
            return _record_to_empty(args, kwargs, run, mode_mark)
        result = run(func, args, kwargs)
        defer_outputs(result, None, arguments, location)  # no operation to replay
        _fill_if_deterministic(result, 0, run)
        return result
    if arguments.has_unknown_values and _reads_only_metadata_of_first(traits, args, kwargs):
        args = (_deferred_like(args[0], kwargs, run, arguments.mark), *args[1:])
    elif arguments.has_unknown_values:
        result = run(func, args, kwargs)
        return _mark_unreplayable(func, result, mutated_arguments(traits, args, kwargs), location)
    if needs_values(func, traits, args, kwargs, arguments):
        return run_on_values(func, args, kwargs, arguments, location)
    if checks_values(func):
        check_recorded_values(func, args, kwargs)
    op = new_op(func, traits, args, kwargs, location)
    op.is_sharding = is_sharding
    old_bytes = args[0]._fake_storage.num_bytes if traits.packet in RESIZES else None
    if traits.is_random:
        result = run_draw(func, traits, args, kwargs, location, run)
    else:
        result = run(func, args, kwargs)
    result = add_to_graph(op, traits, result, arguments, args, kwargs)
    if old_bytes is not None:
        result._fake_storage.deferred.num_bytes = None  # a resize does not make a storage smaller
        _fill_if_deterministic(result, old_bytes, run)
    return result


def _names_device(traits: OpTraits, kwargs: Kwargs) -> bool:
    """Whether a tensor is copied to a device, or made there like another one. After ``meta_init``,
    the result reports that device.
    """
    device: torch.device | None = kwargs.get("device")
    is_made_there = traits.packet in _LIKE_FIRST or traits.packet in _MADE_LIKE_FIRST
    return is_made_there and device is not None and devices.decode(device) != devices.META


_MADE_LIKE_FIRST = frozenset(
    {"aten::_to_copy", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
)


def _reads_only_metadata_of_first(traits: OpTraits, args: Args, kwargs: Kwargs) -> bool:
    """Whether the operator reads only metadata of its first argument, and the result has values."""
    if traits.packet not in _LIKE_FIRST:
        return False
    device: torch.device = kwargs.get("device") or args[0].device
    return device.type != "meta"


def _deferred_like(
    tensor: torch.Tensor, kwargs: Kwargs, run: RunOnFakes, mark: int
) -> torch.Tensor:
    """A deferred tensor with the metadata of `tensor`, for an operator that reads only metadata: a
    replay has no real tensor for a meta tensor or a plain fake.
    """
    if is_deferred_fake(tensor):
        return tensor
    device = {"device": kwargs.get("device") or tensor.device}
    result: torch.Tensor = _record(
        _EMPTY_LIKE, traits_of(_EMPTY_LIKE), (tensor,), device, run, mark
    )
    return result


def _record_to_empty(args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int) -> Any:
    """Record ``module.to_empty()`` of a deferred tensor as a copy to the requested device. In eager
    the new memory is uninitialized, so the recorded values are a valid choice. If an initializer
    overwrites the copy, no replay executes it.
    """
    result = record(_TO_COPY, traits_of(_TO_COPY), args, kwargs, run, mode_mark)
    for fake in deferred_fakes([result]):  # none if the copy is a meta tensor
        deferred: Any = fake._fake_storage.deferred
        deferred.contents.op.is_sharding = True  # ranks compare what is copied
    return result


def _fill_if_deterministic(fake: Any, start_bytes: int, run: RunOnFakes) -> None:
    """Record torch's fill of uninitialized memory under ``torch.use_deterministic_algorithms``: of
    a new tensor, or of the bytes of a storage from `start_bytes` on, which a resize has added.
    """
    if not backends.fills_empty_memory():
        return
    storage, meta = fake._fake_storage, fake._fake_meta
    if start_bytes:
        first, end = start_bytes // meta.dtype.itemsize, storage.num_bytes // meta.dtype.itemsize
        meta = intern((max(end - first, 0),), (1,), first, meta.dtype, meta.device)
        fake = new_fake(meta, storage)
    if fake.numel():
        number = number_of_empty_memory(meta.dtype)
        record(_FILL, traits_of(_FILL), (fake, number), {}, run)


def _with_generator_by_name(func: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Make the generator among `args` a keyword argument: `new_op` leaves that one out."""
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Generator):
            named = {a.name: v for a, v in zip(func._schema.arguments[i:], args[i:], strict=False)}
            return args[:i], {**named, **kwargs}
    return args, kwargs


def _record_on_real_memory(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int
) -> Any:
    """Run the operation with real tensors in place of fakes whose memory is already real."""
    if traits.is_view and is_alias(args[0]):
        return run(func, args, kwargs)
    count_writes(mutated_arguments(traits, args, kwargs))
    copied = mode_mark != PLAIN and not traits.mutated_names
    real = [with_real_tensors(arg, copied=copied) for arg in args]
    real_args = tuple(with_repeats(func, args, real))
    real_kwargs = with_real_tensors(kwargs, copied=copied)
    result = record(func, traits, real_args, real_kwargs, run, mode_mark)
    is_first = bool(args) and result is real_args[0]
    if is_first and (not traits.mutated_names or _lie_alike(result, args[0])):
        return args[0]
    if traits.mutated_names:
        fakes = tensors_in(args, kwargs)
        given = dict(zip(tensors_in(real_args, real_kwargs), fakes, strict=True))
        _take_places(given)
        result = _those_given(result, {id(real): fake for real, fake in given.items()})
    if any(map(is_alias, tensors_in(args, kwargs))):
        return fake_aliases(result)  # real results, if it was run at once
    return result


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride()


def _take_places(given: dict[torch.Tensor, torch.Tensor]) -> None:
    """Give fakes the layout of the real tensors that stood for them, where these were resized."""
    for real, fake in given.items():
        if is_deferred_fake(fake) and not _lie_alike(real, fake):
            take_place(fake, real)  # type: ignore[arg-type]


def _those_given(result: Any, given: dict[int, torch.Tensor]) -> Any:
    """The results of an operation, each that stood for a fake replaced by that fake."""
    if isinstance(result, (list, tuple)):
        return type(result)(_those_given(each, given) for each in result)
    return given.get(id(result), result)


def _makes_deferred(traits: OpTraits, arguments: CallArguments, args: Args) -> bool:
    """Whether an operation on real tensors gives a deferred result: a new tensor made in a deferred
    mode. A copy of a generator's state stays real, since ``set_state`` reads its memory.
    """
    if arguments.mark == PLAIN or not traits.returns_tensors:
        return False
    if traits.packet == "aten::clone" and not isinstance(args[0], FakeTensor):
        return not mt19937.is_state(args[0])
    return traits.packet in LIFTS or not (traits.is_view or traits.mutated_names)


def _run_on_real_tensors(func: Any, args: Args, kwargs: Kwargs, run: RunOnFakes) -> Any:
    """Run an operation on real tensors. A random operator draws after all recorded draws."""
    if traits_of(func).is_random:
        generator_sync.synchronize_all()
    if modes.current() is not None:
        return run(func, args, kwargs)
    return func(*args, **kwargs)


def _mark_unreplayable(
    func: Any, result: Any, mutated: list[torch.Tensor], location: RawLocation | None
) -> Any:
    """Mark the contents of `mutated` as unreplayable: they depend on values that do not exist."""
    for tensor in deferred_fakes(mutated):
        op = Op(func, (), {}, location)
        op.unreplayable_reason = (
            f"a deferred {known_values.describe(tensor)}, was written by {op} with values that do "
            "not exist: there was a plain fake tensor among the arguments. Run such a forward pass "
            "in eval(), or on a copy.deepcopy of the module"
        )
        add_write(op, tensor._fake_storage)
    return result

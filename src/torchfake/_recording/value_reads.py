"""Operations whose outcome depends on values: executed while recording.

Input: an operation that reads values of deferred tensors, or writes to a real tensor. Output: its
result, computed from the replayed values of its arguments. Invariant: deferred tensors stay
deferred; the results and the writes to deferred tensors are recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.schemas import (
    ACCEPTS_MASKS,
    OpTraits,
    overload_with_generator,
    traits_of,
)
from torchfake._core.source_location import RawLocation
from torchfake._eager_checks.draws import check_generator
from torchfake._eager_checks.overlaps import check_overlaps
from torchfake._graph.externals import External
from torchfake._graph.operations import Op, Read
from torchfake._operators.argument_checks import check_index_devices
from torchfake._operators.data_dependent import take_size
from torchfake._operators.meta_kernels.first_use import has_replacement
from torchfake._operators.operator_call import (
    Args,
    Call,
    Kwargs,
    mutated_arguments,
    output_device,
    tensors_in,
)
from torchfake._recording import generator_sync
from torchfake._recording.arguments import (
    CallArguments,
    RunOnFakes,
    deferred_fakes,
    is_real,
    with_real_tensors,
)
from torchfake._recording.graph_builder import (
    add_to_graph,
    add_write,
    contents_before_write,
    new_op,
)
from torchfake._replay.first_use import make_real
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy
from torchfake._torch import backends, dispatcher

_CHECK_ERRORS = torch.ops.aten._linalg_check_errors.default


def needs_values(
    func: Any, traits: OpTraits, args: Args, kwargs: Kwargs, arguments: CallArguments
) -> bool:
    """Whether the outcome of an operator depends on values, or it writes to a real tensor."""
    if traits.reads_values and arguments.tensors:
        if traits.packet in ACCEPTS_MASKS:
            return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return not traits.returns_tensors or not has_replacement(func)
    return arguments.has_real and any(map(is_real, mutated_arguments(traits, args, kwargs)))


def run_on_values(
    func: Any, args: Args, kwargs: Kwargs, arguments: CallArguments, location: RawLocation | None
) -> Any:
    """Execute `func` on replayed values of its arguments; record its results and its writes."""
    traits = traits_of(func)
    if func is _CHECK_ERRORS and _has_no_values(args[0]):
        return None  # assume success, as for plain fakes
    check_overlaps(func, args, kwargs)
    device = output_device(Call(func, args, kwargs))  # refuses tensors on different devices
    if traits.packet in ACCEPTS_MASKS:
        check_index_devices(*args[:2])
    op = new_op(func, traits, args, kwargs, location) if traits.returns_tensors else None
    mutated = mutated_arguments(traits, args, kwargs)
    writes_real = any(map(is_real, mutated))
    if writes_real and arguments.mark and modes.current() is None:
        materialize_storages(arguments.tensors)
        return func(*map(with_real_tensors, args), **with_real_tensors(kwargs))
    with dispatcher.as_eager():
        copies = _copies_of(deferred_fakes(mutated))
        real_args = [_value_of(arg, copies) for arg in args]
        real_kwargs = {name: _value_of(arg, copies) for name, arg in kwargs.items()}
        result = func(*real_args, **real_kwargs)
    for fake in deferred_fakes(mutated):
        take_size(fake, copies[id(fake)])
    if op is not None and not writes_real:
        return add_to_graph(op, traits, _fake_copies(result, device), arguments, args, kwargs)
    for fake in deferred_fakes(mutated):  # deferred tensors in a list with real ones
        _record_value(fake, copies[id(fake)], location)
    return result


def _has_no_values(tensor: torch.Tensor) -> bool:
    """Whether the last write to a deferred tensor was an operation on plain fakes, for instance to
    the ``info`` of ``lu_factor(fake, out=...)`` outside of modes.
    """
    ops = [fake._fake_storage.deferred.contents.op for fake in deferred_fakes([tensor])]  # type: ignore[union-attr]
    return any(op is not None and op.unreplayable_reason is not None for op in ops)


def run_draw(
    func: Any,
    traits: OpTraits,
    args: Args,
    kwargs: Kwargs,
    location: RawLocation | None,
    run: RunOnFakes,
) -> Any:
    """Run a random operator on fakes. A call that eager refuses raises at once; draws and writes
    that eager does before its error are done, too.
    """
    check_generator(func, args, kwargs)
    try:
        if traits.checks_parameters and _is_on_cpu(args, kwargs):
            _draw_on_values(func, args, kwargs, torch.Generator(device="cpu"))
        return run(func, args, kwargs)
    except (RuntimeError, ValueError, IndexError) as error:
        refuses_late = traits.checks_parameters or overload_with_generator(func) is None
        is_early = "single memory location" in str(error)  # of what is written
        if refuses_late and not is_early and _is_on_cpu(args, kwargs):
            generator = kwargs.get("generator") or torch.default_generator
            generator_sync.synchronize(backends.canonical_generator(generator))
            _draw_on_values(func, args, kwargs, kwargs.get("generator"), location)
        raise


def _is_on_cpu(args: Args, kwargs: Kwargs) -> bool:
    return all(t.device.type == "cpu" for t in tensors_in(args, kwargs))


def _draw_on_values(
    func: Any,
    args: Args,
    kwargs: Kwargs,
    generator: torch.Generator | None,
    location: RawLocation | None = None,
) -> None:
    """Draw as eager would, into copies of the tensors. With `location`, an error is suppressed, and
    values written to the copies before the error are recorded.
    """
    mutated = deferred_fakes(mutated_arguments(traits_of(func), args, kwargs))
    named = {} if generator is None else {"generator": generator}
    with dispatcher.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the replay warns
        copies = _copies_of(mutated)
        real_kwargs = {name: _value_of(arg, copies) for name, arg in kwargs.items()}
        try:
            func(*(_value_of(arg, copies) for arg in args), **{**real_kwargs, **named})
        except (RuntimeError, ValueError, IndexError):
            if location is None:
                raise
    if location is not None:
        for fake in mutated:
            _record_value(fake, copies[id(fake)], location)


def materialize_storages(tensors: Sequence[torch.Tensor]) -> None:
    """Materialize the storages of deferred tensors that are used with real ones: the state that an
    optimizer made for deferred parameters, which each step writes; a tensor that is broadcast,
    which another rank writes.
    """
    for fake in deferred_fakes(tensors):
        deferred: Any = fake._fake_storage.deferred
        make_real(deferred)


def _fake_copies(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        return fake_copy(result, device=device)
    return type(result)(_fake_copies(item, device) for item in result)


def _copies_of(mutated: list[FakeTensor]) -> dict[int, torch.Tensor]:
    """Copies of the values of fakes that an operation is about to write, by their ids."""
    return {id(t): known_values.read_value(t, "an operation").clone() for t in mutated}


def _value_of(arg: Any, copies: dict[int, torch.Tensor]) -> Any:
    """The real value of an argument: from `copies` if the operation writes it."""
    if isinstance(arg, FakeTensor):
        value = copies.get(id(arg))
        return known_values.read_value(arg, "an operation") if value is None else value
    if isinstance(arg, (list, tuple)):
        return [_value_of(item, copies) for item in arg]
    return arg


def _record_value(fake: FakeTensor, value: torch.Tensor, location: RawLocation | None) -> None:
    """Record a write of `value`, a tensor that nothing else references, to `fake`."""
    target = Read(contents_before_write(fake), fake._fake_meta)
    op = Op(torch.ops.aten.copy_.default, (target, External(value)), {}, location)
    add_write(op, fake._fake_storage)

"""Constant propagation: the values of results, computed where the values of all inputs are known.

Input: a :class:`Call` that has its result. Output: storages whose value is set or forgotten.
Invariant: a written storage has the value that eager would give it, or no value.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices, memory, modes
from torchfake._core.schemas import traits_of
from torchfake._core.storage import ConstantFill, SharedBytes
from torchfake._operators import lazy_draws, lazy_values, random_values
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._random.generator_memory import call_drawing_nothing
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends, dispatcher
from torchfake._torch.cpp_metadata import is_structured
from torchfake._unknown_values import assumptions
from torchfake.errors import UnsupportedOpError


def argument_value(value: Any) -> Any:
    """An argument with fakes replaced by their values, which must all be known."""
    if isinstance(value, FakeTensor):
        return known_values.value_of(value)
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [argument_value(item) for item in value]
    if isinstance(value, torch.device):
        return devices.CPU
    return value


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake of known value, or a small real CPU tensor."""
    if isinstance(tensor, FakeTensor):
        return known_values.is_known(tensor)
    if tensor.device.type != "cpu":
        return False
    return known_values.keeps_value(tensor.numel() * tensor.element_size(), tensor.dtype)


def run_on_values(call: Call) -> Any:
    """Run the operator on the values of its arguments, on the CPU."""
    if _is_overwritten_unread(call):
        return _run_on_new_memory(call)
    for fake in mutated_tensors(call):
        if isinstance(fake, FakeTensor) and fake._fake_storage.value is not None:
            fake._fake_storage.writable_bytes()
    return _run_kernel(call)


def _is_overwritten_unread(call: Call) -> bool:
    """Whether the operator overwrites a whole value, not computed yet, without reading it."""
    first = call.args[0] if call.traits.overwrites_first else None
    if not isinstance(first, FakeTensor) or not isinstance(first._fake_storage.value, SharedBytes):
        return False
    others = [t._fake_storage for t in call.tensors[1:] if isinstance(t, FakeTensor)]
    return covers_storage(first) and first._fake_storage not in others


def _run_on_new_memory(call: Call) -> Any:
    """Run the operator with new memory in place of the first argument's value, which is restored if
    the operator fails.
    """
    storage = call.args[0]._fake_storage
    before = storage.value
    storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    try:
        return _run_kernel(call)
    except BaseException:
        storage.value = before
        raise


def _run_kernel(call: Call) -> Any:
    func, kwargs = call.func, {n: argument_value(a) for n, a in call.kwargs.items()}
    args = [argument_value(a) for a in call.args]
    kwargs.pop("pin_memory", None)
    if call.traits.is_random:
        func, args, kwargs = random_values.with_private_generator(func, args, kwargs, call.device)
    if any(tensor.is_complex() for tensor in call.tensors):
        with dispatcher.no_interception():
            return call_drawing_nothing(func, args, kwargs, UnsupportedOpError)
    return call_drawing_nothing(func, args, kwargs, UnsupportedOpError)


def propagate_values(call: Call, result: Any) -> None:
    """Compute the values of new results and written arguments, or forget overwritten values."""
    fakes = [t for t in mutated_tensors(call) if isinstance(t, FakeTensor)]
    written = [fake for fake in fakes if _has_elements_after(call, fake)]
    new = _new_results(call, result)
    if not written and not new:
        return
    if not written and _is_of_nothing(call, new):
        return
    if modes.is_recording() or (call.traits.is_random and _is_drawn_elsewhere(call)):
        for fake in written:
            fake._fake_storage.value = None
        return
    if call.traits.returns_uninitialized and not written:
        _start_uninitialized(new)
        return
    if call.traits.is_random and lazy_draws.draw_lazily(call, result):
        return
    if _can_compute_values(call, written, new) and all(map(_has_memory, written)):
        if _compute_values(call, result, new):
            return
    if call.traits.is_random:
        random_values.skip_draw(call, (written or new)[0]._fake_meta)
    if not is_recorded(call) and assumptions.follow(call, result):
        return
    for fake in written:
        fake._fake_storage.value = None


def _is_drawn_elsewhere(call: Call) -> bool:
    """Whether a draw is recorded, or is one of several that are counted as one."""
    return modes.thread.skips_draws_as_one or is_recorded(call)


def _is_of_nothing(call: Call, new: list[FakeTensor]) -> bool:
    """Whether there is nothing to compute, or nothing to compute it from. The kernel is not run:
    some divide by the number of elements, which ends the process. Structured ones check it first.
    """
    if call.traits.packet == "aten::as_strided_copy":  # which reads memory beyond its argument
        return not call.tensors[0].numel()
    if call.traits.is_random or not call.tensors or is_structured(call.func):
        return False
    has_several = len(call.tensors) > 1
    return not any(fake.numel() for fake in new) or (
        has_several and not any(tensor.numel() for tensor in call.tensors)
    )


def _has_elements_after(call: Call, fake: FakeTensor) -> bool:
    """Whether a written argument has elements once the operator has run."""
    after = [meta for meta, argument in call.fakes_by_meta.values() if argument is fake]
    return all((after[0] if after else fake).shape)


def is_recorded(call: Call) -> bool:
    """Whether the operator is recorded, in a mode or outside, alone or as part of an initializer.
    The record then defines the values, and a draw would move the caller's generator twice.
    """
    if modes.is_recording():
        return True
    if modes.is_in_recorded_initializer():
        return True
    return any(isinstance(t, FakeTensor) and t._fake_storage.deferred for t in call.tensors)


def _start_uninitialized(new: list[FakeTensor]) -> None:
    """Let uninitialized integers be zeros: programs fill indices part by part, and each part then
    has a known value. Uninitialized floats are weights and get no value. Under
    ``torch.use_deterministic_algorithms`` torch fills both.
    """
    fills = backends.fills_empty_memory()
    for fake in new:
        storage, dtype = fake._fake_storage, fake.dtype
        is_integer = not (dtype.is_floating_point or dtype.is_complex)
        if (is_integer or fills) and known_values.keeps_value(storage.num_bytes, dtype):
            number = memory.number_of_empty_memory(dtype) if fills else 0
            storage.value = ConstantFill(number, dtype, storage.num_bytes)


def _has_memory(fake: FakeTensor) -> bool:
    """Whether the known value of a written argument has all the memory that the operator writes,
    also if the argument had no elements before.
    """
    return not has_grown(fake) and (fake.numel() > 0 or fake._fake_storage.is_known)


def has_grown(fake: FakeTensor) -> bool:
    """Whether the operator has enlarged a storage of known value: the new memory is unwritten."""
    storage = fake._fake_storage
    return storage.value is not None and storage.num_bytes > storage.num_known_bytes()


def _new_results(call: Call, result: Any) -> list[FakeTensor]:
    """The results that have a storage of their own."""
    if isinstance(result, FakeTensor):
        results = [result]
    elif isinstance(result, (list, tuple)):
        results = [r for r in result if isinstance(r, FakeTensor)]
    else:
        return []
    arguments = {id(t._fake_storage) for t in call.tensors if isinstance(t, FakeTensor)}
    return [r for r in results if id(r._fake_storage) not in arguments]


def _can_compute_values(call: Call, written: list[FakeTensor], new: list[FakeTensor]) -> bool:
    """Whether the values of all inputs are known. A storage that is overwritten as a whole counts
    as known: the storage gets memory to be written to.
    """
    traits = call.traits
    if any(not known_values.keeps_value(f._fake_storage.num_bytes, f.dtype) for f in new):
        return False
    if traits.is_random and not random_values.keeps_drawn_values(call.func, [*written, *new]):
        return False
    if traits.overwrites_first and covers_storage(call.args[0]):
        others = call.tensors[1:]
        if not is_known(call.args[0]) and all(is_known(t) for t in others):
            storage = call.args[0]._fake_storage
            storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    is_rrelu = traits.packet in ("aten::rrelu_with_noise", "aten::rrelu_with_noise_")
    if is_rrelu and is_known(call.args[0]):
        noise = call.args[1]  # written as a whole, though never read
        if isinstance(noise, FakeTensor) and noise._fake_storage.value is None:
            storage = noise._fake_storage
            storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    return all(is_known(t) for t in call.tensors) or assumptions.decides_scale(call)


def covers_storage(fake: FakeTensor) -> bool:
    """Whether a fake contains each byte of its storage, whose value is small enough to be known."""
    num_bytes = fake._fake_storage.num_bytes
    return known_values.keeps_value(num_bytes, fake.dtype) and memory.covers(
        fake._fake_meta, num_bytes
    )


def _compute_values(call: Call, result: Any, new: list[FakeTensor]) -> bool:
    """Run the operator on values; return whether the value of every new result is known now."""
    if _copies_onto_itself(call):
        return True
    if _can_be_lazy(call, result, new):
        _set_lazy_value(call.func, call.args, call.kwargs, result)
        return True
    try:
        values = run_on_values(call)
    except (NotImplementedError, RuntimeError) as error:
        if call.device.type == "cpu" or isinstance(error, RecursionError):
            raise
        return False  # the CPU has no kernel where the fake's device may have one
    if not new:
        return True  # the values were written in place
    pairs = (
        [(result, values)] if isinstance(result, FakeTensor) else zip(result, values, strict=True)
    )
    for fake, value in pairs:
        if value is None or not any(fake is f for f in new):  # None: unwanted attention weights
            continue
        if value.shape == fake.shape:  # on CUDA, batch norm saves statistics in eval, too
            set_value(fake, value)
        else:
            assert call.device.type != "cpu", call.func
    return True


def _copies_onto_itself(call: Call) -> bool:
    """Whether the call copies elements onto themselves, as ``x[0] += 1`` does at its end."""
    if call.traits.packet != "aten::copy_" or not isinstance(call.args[1], FakeTensor):
        return False
    target, source = call.args[:2]
    is_same = target._fake_meta is source._fake_meta
    return is_same and target._fake_storage is source._fake_storage


def _can_be_lazy(call: Call, result: Any, new: list[FakeTensor]) -> bool:
    """Whether the one result is alone in its storage and may be computed when it is read."""
    if not isinstance(result, FakeTensor) or not lazy_values.can_be_lazy(
        call.traits.packet, call.tensors
    ):
        return False
    if call.kwargs.get("rounding_mode") is not None:  # integer division fails for a zero
        return False
    if len(new) == 1 and new[0] is result:
        return True
    storage = result._fake_storage
    others = [t._fake_storage for t in call.tensors[1:] if isinstance(t, FakeTensor)]
    if result is not call.args[0] or storage in others:
        return False  # eager may refuse an overlap, by where the elements lie
    return not result._fake_meta.differs_from_memory and lazy_values.keeps_dtype(call)


def _set_lazy_value(func: Any, args: Args, kwargs: Kwargs, fake: FakeTensor) -> None:
    """Let the value of `fake` be computed when it is first read."""
    storage = fake._fake_storage
    if traits_of(func).overwrites_first and covers_storage(fake):  # its old value is not read
        storage.value = ConstantFill(0, torch.uint8, storage.num_bytes)
    record, num_bytes = fake._fake_meta, storage.num_bytes
    storage.value = lazy_values.lazy_value(func, args, kwargs, record, num_bytes)


def write_lazily(func: Any, args: Args) -> bool:
    """Let the value that `func` writes to its first argument be computed when it is read, as that
    of an earlier call of equal metadata. Return False, with no effect, if values are not known.
    """
    written: FakeTensor = args[0]
    storage = written._fake_storage
    if modes.is_recording() or modes.is_in_recorded_initializer():
        return False
    if not all(is_known(arg) for arg in args[1:] if isinstance(arg, torch.Tensor)):
        return False
    if not (traits_of(func).overwrites_first and covers_storage(written)):
        if not storage.is_known or has_grown(written):
            return False
    _set_lazy_value(func, args, {}, written)
    return True


def set_value(fake: FakeTensor, value: torch.Tensor) -> None:
    storage = fake._fake_storage
    if fake._fake_meta.zero:
        storage.value = ConstantFill(0, fake.dtype, storage.num_bytes)
        return
    storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    written = memory.view_of(storage.value, fake._fake_meta)
    if fake.dtype in _WITHOUT_COPIES:
        written, value = written.view(torch.uint8), value.view(torch.uint8)
    written.copy_(value)


_WITHOUT_COPIES = frozenset(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)
)
"""Dtypes of a byte that no kernel copies, which `zeros` makes nevertheless: in 2.13, 2.15."""

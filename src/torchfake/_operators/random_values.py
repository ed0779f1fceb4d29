"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, the operator with a private generator, or a :class:`LazyDraw`. Invariant: the global
generators never move; a private stream (``_random/private_streams``) moves in their place, by every
draw, as they do in eager mode. A ``generator=`` that the caller has given moves itself.

Draws of integers, of single numbers and of a few floats decide what a program does next (samplers,
seeds, LayerDrop, ``torch.rand(1) < p``) and keep their values; larger draws of floats are weights
and noise and do not: they are passed over. What is not read is not drawn, until a later draw is.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torchfake._core import modes, schemas
from torchfake._core.memory import view_of
from torchfake._core.metadata import Metadata, bytes_spanned
from torchfake._core.storage import SharedBytes
from torchfake._operators import lazy_values
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._random import fake_generators, private_streams, word_counts
from torchfake._random.private_streams import Fill, PrivateStream, Run, Words
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import Setting

aten = torch.ops.aten

MAX_KNOWN_FLOATS = 64
"""The largest draw of floats whose values are kept."""

MAX_RUN_ELEMENTS = 20_000_000
"""The largest draw that is done only to know how far it moves the generator."""

_FILLS = {
    "aten::rand": aten.uniform_.default,
    "aten::rand_like": aten.uniform_.default,
    "aten::randn": aten.normal_.default,
    "aten::randn_like": aten.normal_.default,
    "aten::uniform_": aten.uniform_.default,
    "aten::normal_": aten.normal_.default,
    "aten::normal": aten.normal_.default,
    "aten::exponential_": aten.exponential_.default,
    "aten::cauchy_": aten.cauchy_.default,
    "aten::log_normal_": aten.log_normal_.default,
    "aten::geometric_": aten.geometric_.default,
    "aten::bernoulli_": aten.bernoulli_.float,
}
"""Draws that may be done later, as fills of memory: none reads the value of a tensor."""

LIKE_ITS_ARGUMENT = frozenset({"aten::rand_like", "aten::randn_like"})
"""Draws that read nothing of their argument but its metadata."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
"""Dtypes for which the CPU has kernels of all these fills."""


def keeps_draw(dtype: torch.dtype, num_elements: int) -> bool:
    """Whether the values of a draw of `num_elements` are kept."""
    is_inexact = dtype.is_floating_point or dtype.is_complex
    return not is_inexact or num_elements <= MAX_KNOWN_FLOATS


def keeps_drawn_values(func: Any, results: list[Any]) -> bool:
    """Whether the values that `func` draws for `results` are kept."""
    return schemas.overload_with_generator(func) is not None and all(
        keeps_draw(r.dtype, r.numel()) for r in results
    )


# Generators.


def with_private_generator(
    func: Any, args: Sequence[Any], kwargs: Kwargs, device: torch.device
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The call so changed that running it does not move the global generator."""
    overload = schemas.overload_with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    stream, _ = _stream_of(_given_generator(args, kwargs), device)
    stream.settle()
    others = [arg for arg in args if not isinstance(arg, torch.Generator)]
    return overload, others, {**kwargs, "generator": stream.generator}


def _given_generator(args: Sequence[Any], kwargs: Kwargs) -> torch.Generator | None:
    """The generator that the caller has given, if it is not the global one."""
    found = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
    if not found or backends.canonical_generator(found[0]) is torch.default_generator:
        return None
    return found[0]


def _stream_of(given: torch.Generator | None, device: torch.device) -> tuple[PrivateStream, bool]:
    """What a call draws from, and whether nothing may wait there: the program has methods of a real
    generator, which see its state.
    """
    if given is not None:
        fake = fake_generators.fake_generator(given)
        return (PrivateStream(given), True) if fake is None else (fake.private_stream(), False)
    if device.type != "cpu":
        return fake_generators.default_generator(device).private_stream(), False
    return private_streams.position().stream(), False


# Draws that are passed over.


def pass_words(words: Words) -> None:
    """Let a large draw take its words of the private stream."""
    thread = modes.thread
    if not (thread.passes_over_together or modes.is_recording()):
        (thread.draw_position or private_streams.position()).pass_over(words)


def words_to_pass(func: Any, args: Args, kwargs: Kwargs, record: Metadata) -> Words | None:
    """The words that each such call passes over; None if calls differ, or keep values."""
    if record.device.type != "cpu" or keeps_draw(record.dtype, math.prod(record.size)):
        return None
    taken = word_counts.taken_by(func, args, kwargs, record)
    return taken if isinstance(taken, Words) else None


def pass_over(call: Call, record: Metadata) -> None:
    """Let a draw whose values are not kept take its place. `record`: of what is drawn.

    One that cannot be counted is done later, if all that it takes has values; else what is drawn
    after it differs from eager's.
    """
    if call.device.type == "meta" or modes.thread.passes_over_together:
        return
    taken: Any = word_counts.taken_by(call.func, call.args, call.kwargs, record)
    if taken is None:
        taken = _run_later(call, record)
    if taken is not None:
        _add(taken, _given_generator(call.args, call.kwargs), call.device)


def _add(taken: Any, given: torch.Generator | None, device: torch.device) -> None:
    stream, is_real = _stream_of(given, device)
    stream.add(taken)
    if is_real:
        stream.settle()


def passing_over_together(
    function: Callable[..., Any], fake: FakeTensor, args: Args, generator: torch.Generator | None
) -> Setting:
    """Context: draws that are passed over here are counted by calling `function`, which fills a
    tensor, when it has to be known how many words they take.
    """
    is_refused = fake.is_inference() and not torch.is_inference_mode_enabled()
    if math.prod(fake.shape) <= MAX_RUN_ELEMENTS and not is_refused:
        filled = [fake._fake_meta, *args]
        given = None if generator is None else _given_generator((generator,), {})
        _add(Run.again(partial(_run, function, filled, {})), given, fake.device)
    return Setting(
        lambda: modes.thread.passes_over_together,
        lambda value: setattr(modes.thread, "passes_over_together", value),
        True,
    )


def _run_later(call: Call, record: Metadata) -> Run | None:
    overload = schemas.overload_with_generator(call.func)
    written = mutated_tensors(call)
    taken = [t for t in call.tensors if not any(t is w for w in written)]
    is_known = all(isinstance(t, FakeTensor) and t._fake_storage.is_known for t in taken)
    if overload is None or not is_known or math.prod(record.size) > MAX_RUN_ELEMENTS:
        return None
    args = [_kept(arg, written) for arg in call.args if not isinstance(arg, torch.Generator)]
    kwargs = {n: _kept(arg, written) for n, arg in call.kwargs.items() if n in _KEPT_OPTIONS}
    return Run(partial(_run, overload, args, kwargs))


_KEPT_OPTIONS = frozenset({"dtype", "training"})


def _kept(arg: Any, written: list[Any]) -> Any:
    if not isinstance(arg, FakeTensor):
        return arg
    if any(arg is w for w in written):
        return arg._fake_meta
    return lazy_values.KnownArgument(arg._fake_meta, arg._fake_storage)


def _run(func: Any, args: list[Any], kwargs: Kwargs, generator: torch.Generator) -> None:
    func(*map(_real, args), **kwargs, generator=generator)


def _real(arg: Any) -> Any:
    if isinstance(arg, Metadata):
        return torch.empty_strided(arg.size, arg.stride, dtype=arg.dtype, device="cpu")
    return lazy_values.to_real(arg)


def draw_for_real(call: Call) -> Any:
    """Draw into a real tensor: what eager would draw there. The global generator moves to where
    eager has it then.
    """
    overload = schemas.overload_with_generator(call.func)
    if overload is None or _given_generator(call.args, call.kwargs) is not None:
        return call.func(*call.args, **call.kwargs)
    if modes.is_recording():
        return call.func(*call.args, **call.kwargs)
    position = private_streams.position()
    position.move_global()
    return call.func(*call.args, **call.kwargs)


# Draws that are done when they are read.


class LazyDraw(SharedBytes):
    """The value of a draw, which is done when it is read, after those before it in the stream."""

    __slots__ = ("__weakref__", "_num_bytes", "_stream")

    is_draw = True

    def __init__(self, stream: PrivateStream, num_bytes: int) -> None:
        self.value = None
        self._stream = stream
        self._num_bytes = num_bytes

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            self._stream.settle()
        assert self.value is not None
        return self.value

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


def _filled(
    num_bytes: int, record: Metadata, fill: Any, args: Args, kwargs: Kwargs, generator: Any
) -> torch.UntypedStorage:
    with dispatcher.no_interception():
        made = torch.UntypedStorage(num_bytes, device="cpu")
        fill(view_of(made, record), *args, **kwargs, generator=generator)
    return made


def _numbers_drawn_with(call: Call) -> tuple[Any, ...] | None:
    """The positional arguments of the fill that does the draw; None if some are tensors."""
    if call.traits.mutated_names:
        return tuple(call.args[1:])
    if call.traits.packet != "aten::normal":
        return ()
    numbers = tuple(call.args[:2])  # mean and standard deviation; then the size
    return numbers if call.func is aten.normal.float_float else None


def draw_lazily(call: Call, fake: Any) -> bool:
    """Let the value of `fake`, a few floats that `call` has drawn, be drawn when it is read.

    Whether that is possible. A draw into a part of a storage whose value is unknown takes its place
    in the stream and is lost.
    """
    fill = _FILLS.get(call.traits.packet)
    if fill is None or not isinstance(fake, FakeTensor) or not _is_small_draw(fake, call):
        return False
    is_in_place = bool(call.traits.mutated_names)
    storage, record = fake._fake_storage, fake._fake_meta
    is_whole = record.num_bytes == storage.num_bytes
    if is_in_place and not is_whole and storage.value is not None:
        return False  # done at once, in the bytes that are there
    numbers = _numbers_drawn_with(call)
    if numbers is None:
        return False
    options = {n: v for n, v in call.kwargs.items() if is_in_place and n != "generator"}
    size = storage.num_bytes if is_whole else _bytes_up_to_end(record)
    stream, is_real = _stream_of(_given_generator((), call.kwargs), call.device)
    storage.value = drawn = LazyDraw(stream, size) if is_whole else None
    _fill_later(drawn, stream, record, fill, numbers, options, size)
    if is_real:
        stream.settle()
    return True


def draw_whole_lazily(fill: Any, args: Args) -> bool:
    """:func:`draw_lazily` for the first argument of an operator that fills it, a plain fake on the
    CPU of few floats; or nothing has happened, if there is more to its storage.
    """
    storage, record = args[0]._fake_storage, args[0]._fake_meta
    size = record.num_bytes
    if storage.num_bytes != size or storage.deferred or modes.is_recording():
        return False
    if modes.is_in_recorded_initialiser():
        return False
    stream = private_streams.position().stream()
    storage.value = drawn = LazyDraw(stream, size)
    _fill_later(drawn, stream, record, fill, args[1:], {}, size)
    return True


def _fill_later(
    drawn: LazyDraw | None, stream: PrivateStream, record: Metadata, fill: Any, *call: Any
) -> None:
    """Have a fill take its place in the stream, for the value that gets its bytes, if one does.

    Args:
        drawn: that value.
        stream: where it is drawn from.
        record: of the tensor that is filled.
        fill: the operator that fills it.
        *call: the arguments of that but for the tensor, the named ones, and the size in bytes.
    """
    numbers, options, size = call
    item = Fill(
        partial(_filled, size, record, fill, numbers, options),
        partial(word_counts.taken_by, fill, (None, *numbers), options, record),
    )
    if drawn is not None:
        item.reader = weakref.ref(drawn)  # before others may see the item: what nobody reads goes
    stream.add(item)


def _is_small_draw(fake: FakeTensor, call: Call) -> bool:
    is_plain = fake.dtype in _DTYPES and not fake._fake_meta.zero
    overload_is_plain = not (call.traits.mutated_names and len(call.tensors) != 1)
    return is_plain and overload_is_plain and fake.numel() <= MAX_KNOWN_FLOATS


def _bytes_up_to_end(record: Metadata) -> int:
    return bytes_spanned(record.size, record.stride, record.offset, record.dtype.itemsize)


# Draws with ``out=``.


def draw_into(func: Any, args: Args, kwargs: Kwargs, run: Callable[..., Any]) -> Any:
    """``torch.rand(3, out=x)`` and its kin, as eager does them: `x` gets the size, and is filled.

    ``run(func, args, kwargs)`` runs an operator without ``out=``.
    """
    out, generator = kwargs["out"], kwargs.get("generator")
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    named |= {n: value for n, value in kwargs.items() if n not in ("out", "generator")}
    fill = _FILLS_OF_OUT.get(func._schema.name)
    if fill is not None and "size" in named:
        out.resize_(named.pop("size"))
        return fill(out, *named.values(), generator=generator)
    packet, overload = func.overloadpacket, func._schema.overload_name
    if func._schema.name == "aten::randperm":
        options = {"dtype": out.dtype, "device": out.device, "generator": generator}
        drawn = run(packet.generator, args, options)
    else:
        functional = getattr(packet, overload.removesuffix("out").removesuffix("_") or "default")
        drawn = run(functional, tuple(named.values()), {"generator": generator})
    return out.resize_(drawn.shape).copy_(drawn)


def _fill_with_integers(out: Any, *bounds: int, generator: Any) -> Any:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return out.random_(low, high, generator=generator)


_FILLS_OF_OUT: dict[str, Callable[..., Any]] = {
    "aten::rand": lambda out, generator: out.uniform_(generator=generator),
    "aten::randn": lambda out, generator: out.normal_(generator=generator),
    "aten::normal": lambda out, *numbers, generator: out.normal_(*numbers, generator=generator),
    "aten::randint": _fill_with_integers,
}


def overloads_with_out() -> list[Any]:
    """The operators that :func:`draw_into` does."""
    names = (
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
    )
    packets = [getattr(aten, name) for name in names]
    found = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [f for f in found if any(a.name == "out" for a in f._schema.arguments)]

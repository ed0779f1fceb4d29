"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, or the operator with a generator that stands for the global one. Invariant: the
global generators never move; a lazy generator (``_random/lazy_generators``) moves in their place,
by every draw, as they do in eager mode. A ``generator=`` that the caller has given moves itself.

Draws of integers, of single numbers and of a few floats decide what a program does next (samplers,
seeds, LayerDrop, ``torch.rand(1) < p``) and keep their values; larger draws of floats are weights
and noise and do not: they are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torchfake._core import modes, schemas
from torchfake._core.metadata import Metadata
from torchfake._operators import lazy_values
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._random import fake_generators, lazy_generators, word_counts
from torchfake._random.lazy_generators import LazyGenerator, Run, Words
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends
from torchfake._torch.contexts import Setting

aten = torch.ops.aten

MAX_KNOWN_FLOATS = 64
"""The largest draw of floats whose values are kept."""

MAX_RUN_ELEMENTS = 20_000_000
"""The largest draw that is done only to know how far it moves the generator."""


LIKE_ITS_ARGUMENT = frozenset({"aten::rand_like", "aten::randn_like"})
"""Draws that read nothing of their argument but its metadata."""


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
    lazy, _ = lazy_generator_of(given_generator(args, kwargs), device)
    lazy.settle()
    others = [arg for arg in args if not isinstance(arg, torch.Generator)]
    return overload, others, {**kwargs, "generator": lazy.generator}


def given_generator(args: Sequence[Any], kwargs: Kwargs) -> torch.Generator | None:
    """The generator that the caller has given, if it is not the global one."""
    found = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
    if not found or backends.canonical_generator(found[0]) is torch.default_generator:
        return None
    return found[0]


def lazy_generator_of(
    given: torch.Generator | None, device: torch.device
) -> tuple[LazyGenerator, bool]:
    """What a call draws from, and whether nothing may wait there: the program has methods of a real
    generator, which see its state.
    """
    if given is not None:
        fake = fake_generators.fake_generator(given)
        return (LazyGenerator(given), True) if fake is None else (fake.lazy_generator(), False)
    if device.type != "cpu":
        return fake_generators.default_generator(device).lazy_generator(), False
    return lazy_generators.position().lazy_generator(), False


# Draws that are passed over.


def pass_words(words: Words) -> None:
    """Let a large draw take its words of the lazy generator."""
    thread = modes.thread
    if not (thread.passes_over_together or modes.is_recording()):
        (thread.draw_position or lazy_generators.position()).pass_over(words)


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
        _add(taken, given_generator(call.args, call.kwargs), call.device)


def _add(taken: Any, given: torch.Generator | None, device: torch.device) -> None:
    lazy, is_real = lazy_generator_of(given, device)
    lazy.add(taken)
    if is_real:
        lazy.settle()


def passing_over_together(
    function: Callable[..., Any], fake: FakeTensor, args: Args, generator: torch.Generator | None
) -> Setting:
    """Context: draws that are passed over here are counted by calling `function`, which fills a
    tensor, when it has to be known how many words they take.
    """
    is_refused = fake.is_inference() and not torch.is_inference_mode_enabled()
    if math.prod(fake.shape) <= MAX_RUN_ELEMENTS and not is_refused:
        filled = [fake._fake_meta, *args]
        given = None if generator is None else given_generator((generator,), {})
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
    if overload is None or given_generator(call.args, call.kwargs) is not None:
        return call.func(*call.args, **call.kwargs)
    if modes.is_recording():
        return call.func(*call.args, **call.kwargs)
    position = lazy_generators.position()
    position.move_global()
    return call.func(*call.args, **call.kwargs)


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

"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, or the operator with a generator that stands for the global one. Invariant: the
global generators never move; a lazy generator (``_random/lazy_generators``) moves in their place,
by every draw, as they do in eager mode. A ``generator=`` that the caller has given moves itself.

The values of integers, of single numbers and of a few floats decide what a program does next
(samplers, seeds, LayerDrop, ``torch.rand(1) < p``), so they are kept. Larger draws of floats are
weights and noise: they are passed over, that is, they only advance the lazy generator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torchfake._core import modes, schemas, source_location
from torchfake._core.metadata import Metadata
from torchfake._core.source_location import SourceLocation
from torchfake._operators import lazy_values
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._random import fake_generators, lazy_generators, word_counts
from torchfake._random.lazy_generators import LazyGenerator, Run, Words
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends
from torchfake._torch.contexts import Setting

aten = torch.ops.aten

MAX_KNOWN_FLOATS = 64
"""The largest draw of floats whose values are kept."""

MAX_RUN_ELEMENTS = 20_000_000
"""The largest draw that is made only to find out how far it moves the generator."""


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
    """The overload and arguments of the call with a lazy generator in place of the global one."""
    overload = schemas.overload_with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    lazy, _ = lazy_generator_of(given_generator(args, kwargs), device)
    lazy.settle()
    others = [arg for arg in args if not isinstance(arg, torch.Generator)]
    return overload, others, {**kwargs, "generator": lazy.generator}


def given_generator(args: Sequence[Any], kwargs: Kwargs) -> torch.Generator | None:
    """The generator that the caller has passed; None if it is the global one, or missing."""
    found = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
    if not found or backends.canonical_generator(found[0]) is torch.default_generator:
        return None
    return found[0]


def lazy_generator_of(
    given: torch.Generator | None, device: torch.device
) -> tuple[LazyGenerator, bool]:
    """The lazy generator that a call draws from, and whether its draws must be made at once: those
    of a real generator must, since the program can read its state.
    """
    if given is not None:
        fake = fake_generators.fake_generator(given)
        return (LazyGenerator(given), True) if fake is None else (fake.lazy_generator(), False)
    if device.type != "cpu":
        return fake_generators.default_generator(device).lazy_generator(), False
    return lazy_generators.position().lazy_generator(), False


# Draws that are passed over.


def skip_words(words: Words) -> None:
    """Advance the lazy generator by the words of a large draw."""
    thread = modes.thread
    if not (thread.skips_draws_as_one or modes.is_recording()):
        (thread.draw_position or lazy_generators.position()).skip_draw(words)


def words_to_skip(func: Any, args: Args, kwargs: Kwargs, record: Metadata) -> Words | None:
    """The words that every such call passes over; None if they vary, or if values are kept."""
    if record.device.type != "cpu" or keeps_draw(record.dtype, math.prod(record.size)):
        return None
    taken = word_counts.taken_by(func, args, kwargs, record)
    return taken if isinstance(taken, Words) else None


def skip_draw(call: Call, record: Metadata) -> None:
    """Advance the lazy generator by a draw of a tensor with `record`, whose values are not kept.

    A draw whose words cannot be counted is made later, if its inputs have known values. If they
    have none, later draws differ from eager's: whoever reads one is warned.
    """
    if call.device.type == "meta" or modes.thread.skips_draws_as_one:
        return
    taken: Any = word_counts.taken_by(call.func, call.args, call.kwargs, record)
    if taken is None:
        taken = _run_later(call, record)
    if taken is None and call.device.type == "cpu":
        taken = _unknown_draw(call.traits.name)
    if taken is not None:
        _add(taken, given_generator(call.args, call.kwargs), call.device)


def _unknown_draw(name: str) -> Run:
    """A draw of which nobody knows how many words it takes: it warns where it would be done."""
    location = source_location.caller_location(3)
    place = "" if location is None else f" at {SourceLocation(*location)}"
    text = (
        f"the random numbers read now differ from eager's: {name}{place} drew before them, and how "
        "many random words it takes depends on values that its fakes do not have, or on more than "
        f"{MAX_RUN_ELEMENTS:,} elements. Call torch.manual_seed() after that draw, or use a "
        "deferred mode"
    )
    return Run(lambda _: warnings.warn(text, stacklevel=2))


def add_unknown_draw(name: str, device: torch.device) -> None:
    """Let whoever reads a later draw be warned of `name`, if it drew on the CPU, unrecorded."""
    if device.type == "cpu" and not modes.is_recording():
        _add(_unknown_draw(name), None, device)


def _add(taken: Any, given: torch.Generator | None, device: torch.device) -> None:
    lazy, is_real = lazy_generator_of(given, device)
    lazy.add(taken)
    if is_real:
        lazy.settle()


def skipping_draws_as_one(
    function: Callable[..., Any], fake: FakeTensor, args: Args, generator: torch.Generator | None
) -> Setting:
    """A context in which draws are passed over together: `function`, which fills a tensor and makes
    all of them, is called when the number of their words is needed.
    """
    is_refused = fake.is_inference() and not torch.is_inference_mode_enabled()
    given = None if generator is None else given_generator((generator,), {})
    if math.prod(fake.shape) > MAX_RUN_ELEMENTS:
        _add(_unknown_draw("trunc_normal_"), given, fake.device)
    elif not is_refused:
        filled = [fake._fake_meta, *args]
        _add(Run.again(partial(_run, function, filled, {})), given, fake.device)
    return Setting(
        lambda: modes.thread.skips_draws_as_one,
        lambda value: setattr(modes.thread, "skips_draws_as_one", value),
        True,
    )


def _run_later(call: Call, record: Metadata) -> Run | None:
    overload = schemas.overload_with_generator(call.func)
    read = () if call.traits.overwrites_first else call.args[:1]  # rrelu_ does not read its noise
    written = [t for t in mutated_tensors(call) if not any(t is r for r in read)]
    taken = [t for t in call.tensors if not any(t is w for w in written)]
    is_known = all(isinstance(t, FakeTensor) and known_values.is_known(t) for t in taken)
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
    real = lazy_values.to_real(arg)
    return real.clone() if isinstance(real, torch.Tensor) else real  # the run may write it


def draw_for_real(call: Call) -> Any:
    """Draw the numbers of eager into a real tensor. The global generator is first moved to its
    position in eager, and then by the draw.
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
    """Run a draw with ``out=`` as eager does: ``torch.rand(3, out=x)`` resizes and fills `x`.

    ``run(func, args, kwargs)`` runs an operator without ``out=``.
    """
    out, generator = kwargs["out"], kwargs.get("generator")
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    named |= {n: value for n, value in kwargs.items() if n not in ("out", "generator")}
    fill = _FILLS_OF_OUT.get(func._schema.name)
    if fill is not None and "size" in named:
        out = _resized(out, named.pop("size"))
        return fill(out, *named.values(), generator=generator)
    if draw := _DRAWN_IN_PLACE.get(func):
        return draw(out, *named.values(), generator=generator)
    packet, overload = func.overloadpacket, func._schema.overload_name
    if func._schema.name == "aten::randperm":
        options = {"dtype": out.dtype, "device": out.device, "generator": generator}
        drawn = run(packet.generator, args, options)
    else:
        functional = getattr(packet, overload.removesuffix("out").removesuffix("_") or "default")
        drawn = run(functional, tuple(named.values()), {"generator": generator})
    return _resized(out, drawn.shape).copy_(drawn)


def _resized(out: Any, size: Sequence[int]) -> Any:
    """`out`, which is resized only if it has another size: one that requires a gradient cannot."""
    return out if tuple(out.shape) == tuple(size) else out.resize_(size)


def _normal_into(out: Any, mean: Any = 0, std: Any = 1, *, generator: Any) -> Any:
    """normal_out_impl in aten/src/ATen/native/DistributionTemplates.h: the mean is read after the
    draw, and may be `out`. A standard deviation that is a number counts as of the shape of `out`.
    """
    of_mean = mean.shape if isinstance(mean, torch.Tensor) else ()
    of_std = std.shape if isinstance(std, torch.Tensor) else out.shape
    out = _resized(out, torch.broadcast_shapes(of_mean, of_std))
    if not isinstance(std, torch.Tensor):
        return out.normal_(0, std, generator=generator).add_(mean)
    return out.normal_(generator=generator).mul_(std).add_(mean)


def _bernoulli_into(out: Any, probability: Any, *, generator: Any) -> Any:
    """bernoulli_out in aten/src/ATen/native/Distributions.cpp."""
    return _resized(out, probability.shape).bernoulli_(probability, generator=generator)


_DRAWN_IN_PLACE: dict[Any, Callable[..., Any]] = {
    aten.normal.Tensor_float_out: _normal_into,
    aten.normal.float_Tensor_out: _normal_into,
    aten.normal.Tensor_Tensor_out: _normal_into,
    aten.bernoulli.out: _bernoulli_into,
}
"""Draws with ``out=`` that eager makes in `out`, before it reads what else they depend on."""


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
    """The random operators with ``out=``, which :func:`draw_into` runs."""
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

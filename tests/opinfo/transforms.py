"""Runs torch's operator database through derivatives and ``torch.func``, and compares with eager.

Input: an OpInfo, a dtype, a transform, a way in which the inputs come about. Output: how many
samples there were, and for each that differs what differed. A sample counts when eager can run it.
Deferred tensors are compared with eager's by metadata, bits and generator state, after they have
been made real; fakes by metadata.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.opinfo.harness import Tally, is_tensor, samples
from tests.opinfo.shortfalls import NONDETERMINISTIC
from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor

UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators whose results nobody has written: there are no bits to be equal."""

Tensors = list[torch.Tensor]


class Call(NamedTuple):
    """An operator as a function of the tensors that it is differentiated by, or mapped over."""

    function: Callable[..., list[Any]]
    primals: Tensors
    tangents: Tensors


Transform = Callable[[Call], Any]


def dual(call: Call) -> Any:
    """Forward mode, as ``torch.autograd.forward_ad`` has it."""
    with forward_ad.dual_level():
        pairs = zip(call.primals, call.tangents, strict=True)
        results = call.function(*(forward_ad.make_dual(p, t) for p, t in pairs))
        return [tuple(forward_ad.unpack_dual(r)) for r in results if is_tensor(r)]


def jvp(call: Call) -> Any:
    return torch.func.jvp(_tensors_only(call.function), tuple(call.primals), tuple(call.tangents))


def vjp(call: Call) -> Any:
    results, pull = torch.func.vjp(_floats_only(call.function), *call.primals)
    return results, pull([torch.ones_like(r) for r in results])


def jvp_of_vjp(call: Call) -> Any:
    """Forward over reverse: a Hessian times a vector."""

    def gradients(*primals: torch.Tensor) -> Any:
        results, pull = torch.func.vjp(_floats_only(call.function), *primals)
        return pull([torch.ones_like(r) for r in results])

    return torch.func.jvp(gradients, tuple(call.primals), tuple(call.tangents))


def vjp_of_jvp(call: Call) -> Any:
    """Reverse over forward."""

    def tangents(*primals: torch.Tensor) -> Any:
        return torch.func.jvp(_floats_only(call.function), primals, tuple(call.tangents))[1]

    results, pull = torch.func.vjp(tangents, *call.primals)
    return results, pull([torch.ones_like(r) for r in results])


def backward(call: Call) -> Any:
    """Gradients that are not differentiated again, for which C++ has formulas of its own."""
    primals = [p.detach().requires_grad_() for p in call.primals]
    results = [r for r in _floats_only(call.function)(*primals) if r.requires_grad]
    ones = [torch.ones_like(r) for r in results]
    return torch.autograd.grad(results, primals, ones, allow_unused=True)


def double_backward(call: Call) -> Any:
    """A gradient of gradients by autograd itself, outside of ``torch.func``."""
    primals = [p.detach().requires_grad_() for p in call.primals]
    results = [r for r in _floats_only(call.function)(*primals) if r.requires_grad]
    options = {"allow_unused": True, "create_graph": True}
    first = torch.autograd.grad(results, primals, [torch.ones_like(r) for r in results], **options)
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        return first
    ones = [torch.ones_like(g) for g in again]
    return first, torch.autograd.grad(again, primals, ones, allow_unused=True)


def hessian(call: Call) -> Any:
    if sum(p.numel() for p in call.primals) > MAX_HESSIAN:
        raise TooLargeError

    def total(*primals: torch.Tensor) -> torch.Tensor:
        results = _floats_only(call.function)(*primals)
        return torch.stack([r.abs().sum() if r.is_complex() else r.sum() for r in results]).sum()

    return torch.func.hessian(total, tuple(range(len(call.primals))))(*call.primals)


def vmap(call: Call) -> Any:
    pairs = zip(call.primals, call.tangents, strict=True)
    stacked = [torch.stack([p, t]) for p, t in pairs]
    return torch.func.vmap(_tensors_only(call.function), randomness="different")(*stacked)


def vmap_same(call: Call) -> Any:
    stacked = [
        torch.stack([p, t], dim=-1) for p, t in zip(call.primals, call.tangents, strict=True)
    ]
    mapped = torch.func.vmap(_tensors_only(call.function), in_dims=-1, randomness="same")
    return mapped(*stacked)


def vmap_of_vjp(call: Call) -> Any:
    def gradients(*primals: torch.Tensor) -> Any:
        results, pull = torch.func.vjp(_floats_only(call.function), *primals)
        return pull([torch.ones_like(r) for r in results])

    stacked = [torch.stack([p, t]) for p, t in zip(call.primals, call.tangents, strict=True)]
    return torch.func.vmap(gradients, randomness="different")(*stacked)


def vmap_of_jvp(call: Call) -> Any:
    def both(*stacked: torch.Tensor) -> Any:
        half = len(stacked) // 2
        function = _tensors_only(call.function)
        return torch.func.jvp(function, stacked[:half], stacked[half:])

    stacked = [torch.stack([p, t]) for p, t in zip(call.primals, call.tangents, strict=True)]
    tangents = [torch.stack([t, p]) for p, t in zip(call.primals, call.tangents, strict=True)]
    return torch.func.vmap(both, randomness="different")(*stacked, *tangents)


def linearize(call: Call) -> Any:
    results, push = torch.func.linearize(_floats_only(call.function), *call.primals)
    return results, push(*call.tangents)


def functionalize(call: Call) -> Any:
    return torch.func.functionalize(_tensors_only(call.function))(*call.primals)


TRANSFORMS: dict[str, Transform] = {
    f.__name__: f
    for f in (
        dual, jvp, vjp, jvp_of_vjp, vjp_of_jvp, backward, double_backward, hessian, vmap,
        vmap_same, vmap_of_vjp, vmap_of_jvp, linearize, functionalize,
    )
}  # fmt: skip
MAX_HESSIAN = 30
"""Elements of the inputs up to which a Hessian is computed: it has as many rows and columns."""


class TooLargeError(Exception):
    """The sample is not run."""


def _tensors_only(function: Callable[..., list[Any]]) -> Callable[..., Tensors]:
    return lambda *primals: [r for r in function(*primals) if is_tensor(r)]


def _floats_only(function: Callable[..., list[Any]]) -> Callable[..., Tensors]:
    def floats(*primals: torch.Tensor) -> Tensors:
        return [r for r in function(*primals) if is_tensor(r) and _is_inexact(r)]

    return floats


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# One sample.


class Way(NamedTuple):
    """How the inputs come about, and what of the outcome is compared."""

    mode: Callable[[], AbstractContextManager[Any]]
    outside: Callable[[torch.Tensor], torch.Tensor]  # makes an input before the mode is entered
    inside: Callable[[torch.Tensor], torch.Tensor]  # makes one of that in the mode
    has_values: bool


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _deferred(tensor: torch.Tensor) -> torch.Tensor:
    with deferred_mode():
        return tensor.clone()


WAYS = {
    "real": Way(deferred_mode, _unchanged, _unchanged, True),
    "cloned": Way(deferred_mode, _unchanged, torch.Tensor.clone, True),
    "after": Way(nullcontext, _deferred, _unchanged, True),
    "fake": Way(fake_mode, fake_like, _unchanged, False),
    "fake_after": Way(nullcontext, fake_like, _unchanged, False),
}
"""Real inputs in a deferred mode; recorded ones in it and after it; fakes in one and after it."""


class Outcome(NamedTuple):
    results: list[Any]
    state: torch.Tensor


def tally(
    op: Any, dtype: torch.dtype, transform: str, ways: list[str], limit: int | None = None
) -> list[Tally]:
    """Every sample of `op` (the first `limit`), eager against each of `ways`."""
    found: list[list[str]] = [[] for _ in ways]
    counts = [0] * len(ways)
    if not op.supports_autograd or dtype not in op.supported_dtypes("cpu"):
        return [Tally(0, []) for _ in ways]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = itertools.islice(samples(op, dtype, True), limit)
        for index, sample in enumerate(drawn):
            expected = Expected(op, sample, TRANSFORMS[transform])
            for i, way in enumerate(ways):
                outcome = expected.by(WAYS[way])
                if outcome is None:
                    continue  # eager cannot run it: there is nothing to equal
                counts[i] += 1
                if why := compare(op, sample, transform, WAYS[way], outcome):
                    found[i].append(f"{index}: {why}")
    return [Tally(count, failures) for count, failures in zip(counts, found, strict=True)]


class Expected:
    """What eager gives for a sample: of copies of the inputs if a way copies them, too."""

    def __init__(self, op: Any, sample: Any, transform: Transform) -> None:
        self._arguments = op, sample, transform
        self._by_inside: dict[Any, Outcome | None] = {}

    def by(self, way: Way) -> Outcome | None:
        if way.inside not in self._by_inside:
            eager = Way(nullcontext, _unchanged, way.inside, True)
            try:
                self._by_inside[way.inside] = run(*self._arguments, eager)
            except Exception:
                self._by_inside[way.inside] = None
        return self._by_inside[way.inside]


def compare(op: Any, sample: Any, transform: str, way: Way, expected: Outcome) -> str | None:
    """None if a sample gives what it gives in eager, else what differs."""
    try:
        got = run(op, sample, TRANSFORMS[transform], way)
        return difference(op, got, expected, has_values=way.has_values)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def run(op: Any, sample: Any, transform: Transform, way: Way) -> Outcome:
    """What a transform of one sample gives, and where it leaves the generator."""
    flat, spec = tree_flatten(sample)
    torch.manual_seed(0)
    tangents = [torch.randn_like(t).detach() if _varies(t) else None for t in flat]
    flat = [way.outside(fresh(t)) if is_tensor(t) else t for t in flat]
    positions = [i for i, t in enumerate(tangents) if t is not None]
    outside = {i: way.outside(tangents[i]) for i in positions}
    torch.manual_seed(0)
    with way.mode():
        made = [way.inside(t) if is_tensor(t) else t for t in flat]

        def function(*varied: torch.Tensor) -> list[Any]:
            arguments = list(made)
            for i, tensor in zip(positions, varied, strict=True):
                arguments[i] = tensor
            value, args, kwargs = tree_unflatten(arguments, spec)
            return tree_flatten(op.op(value, *args, **kwargs))[0]

        call = Call(
            function, [made[i] for i in positions], [way.inside(outside[i]) for i in positions]
        )
        results, _ = tree_flatten(transform(call))
    return Outcome(results, torch.get_rng_state())


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same metadata and values on new memory."""
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    copied = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage().clone(), *place)
    copied = copied.conj() if tensor.is_conj() else copied
    return torch._neg_view(copied) if tensor.is_neg() else copied


def _varies(value: Any) -> bool:
    return is_tensor(value) and value.requires_grad


# What differs.


def difference(op: Any, got: Outcome, expected: Outcome, *, has_values: bool) -> str | None:
    if len(got.results) != len(expected.results):
        return f"{len(got.results)} results, {len(expected.results)} in eager"
    has_bits = has_values and getattr(op, "name", "") not in UNINITIALIZED | NONDETERMINISTIC
    for i, (one, other) in enumerate(zip(got.results, expected.results, strict=True)):
        if described(one) != described(other):
            return f"result {i}: {described(one)} is not {described(other)}"
        if not has_values or not is_tensor(one):
            continue
        one, other = made_real(one), other.detach()
        if described(one) != described(other):
            return f"result {i}, made real: {described(one)} is not {described(other)}"
        if has_bits and bits(one) != bits(other):
            return f"result {i}, made real: {one.flatten()[:5]} is not {other.flatten()[:5]}"
    if has_values and not torch.equal(got.state, expected.state):
        return "another state of the generator"
    return None


def made_real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return materialize_tensor(tensor) if is_fake(tensor) else tensor


def described(value: Any) -> Any:
    """What must be equal besides the bytes: a tensor's metadata, the type of anything else."""
    if not is_tensor(value):
        return type(value).__name__
    if value.layout != torch.strided:
        return tuple(value.shape), value.dtype, value.layout
    place = value.stride(), value.storage_offset(), value.device.type, value.requires_grad
    bits = value.is_conj(), value.is_neg(), value._is_zerotensor()
    return (tuple(value.shape), value.dtype, *place, *bits)


def bits(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(flat.reshape(-1).view(torch.uint8).numpy().tobytes())

"""Settings of the process and of the thread that change the results of operators.

Input: nothing, or earlier settings. Output: the current settings; a context in which the earlier
ones are current. Invariant: a context restores each setting that it changes, and leaves settings
that already have the requested value.

Autocast is such a setting only inside of kernels that call operators which it lists: other casts
are recorded. The choice of an attention kernel is none, as it is made before the dispatch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch

from torchfake._torch import backends
from torchfake._torch.contexts import Restoring, Setting, Together

_TINY, _ONE = 5e-324, 1.0
_HALF_ULP, _QUARTER_ULP = 2.0**-53, 2.0**-54


class Numerics(NamedTuple):
    """Settings on which the values of any operator may depend."""

    default_dtype: torch.dtype
    flushes_denormals: bool  # torch.set_flush_denormal, of this thread
    rounds_to_nearest: bool  # C's fesetround, of this thread; nothing in torch changes it
    num_threads: int  # a sum is split among them
    deterministic: backends.Deterministic | None  # torch.use_deterministic_algorithms
    has_onednn: bool  # torch.backends.mkldnn.enabled


_default_dtype = torch.get_default_dtype
_num_threads = torch.get_num_threads
_has_onednn = torch._C._get_mkldnn_enabled

_interned: dict[tuple[Any, ...], Numerics] = {}


def flushes_denormals() -> bool:
    """Whether this thread takes denormal numbers for zeros. torch has no getter for that."""
    return _TINY == 0.0


def current() -> Numerics:
    """The current settings of this thread. A hot path: each recorded operation stores them."""
    is_nearest = _ONE + _HALF_ULP == _ONE and _ONE - _QUARTER_ULP == _ONE
    options = backends.deterministic_options() if backends.is_deterministic() else None
    settings = _default_dtype(), _TINY == 0.0, is_nearest, _num_threads(), options, _has_onednn()
    known = _interned.get(settings)
    return _interned.setdefault(settings, Numerics(*settings)) if known is None else known


def applied(
    settings: Numerics, for_products: ProductSettings | None = None
) -> AbstractContextManager[Any]:
    """Context: `settings`, except the rounding mode, are current on this thread, and also the
    settings `for_products` of matrices, if given.
    """
    now = current()
    if now is settings and for_products is None:
        return contextlib.nullcontext()
    return Together(
        backends.default_dtype(settings.default_dtype),
        _denormals_flushed(settings.flushes_denormals),
        backends.deterministic(settings.deterministic),
        *(
            Setting(partial(getattr, now, name), setter, getattr(settings, name))
            for name, setter in _SETTERS.items()
        ),
        *_applied_to_products(for_products or ()),
    )


_SETTERS: dict[str, Callable[[Any], None]] = {
    "num_threads": torch.set_num_threads,
    "has_onednn": torch._C._set_mkldnn_enabled,
}


def denormals_flushed(value: bool) -> AbstractContextManager[Any]:
    """Context: whether this thread, and threads that it starts, take denormal numbers for zeros."""
    if flushes_denormals() == value:
        return contextlib.nullcontext()
    return _denormals_flushed(value)


def _denormals_flushed(value: bool) -> Setting:
    return Setting(flushes_denormals, torch.set_flush_denormal, value)


# Products of matrices.


class _Switch(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], Any]


def _precision(backend: str, kind: str) -> _Switch:
    """The switch of ``torch.backends.mkldnn.matmul.fp32_precision`` and the like: how a backend
    computes products of float32. ``torch.set_float32_matmul_precision`` sets it too.
    """
    return _Switch(
        partial(torch._C._get_fp32_precision_getter, backend, kind),
        partial(torch._C._set_fp32_precision_setter, backend, kind),
    )


_BACKENDS = ("mkldnn", "cuda") if torch.backends.cuda.is_built() else ("mkldnn",)
_PRECISIONS = [("generic", "all")]
_PRECISIONS += [(b, kind) for b in _BACKENDS for kind in ("all", "matmul", "conv", "rnn")]
_FLAGS = ["mkldnn_deterministic", "cpu_allow_fp16_reduced_precision_reduction"]
if torch.backends.cuda.is_built():
    _FLAGS += ["cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"]
    _FLAGS += ["cublas_allow_fp16_accumulation"]

_FLAG_SWITCHES = [
    _Switch(getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}")) for name in _FLAGS
]
# oneDNN's LSTM has a kernel for training, which it chooses by the grad mode.
_GRAD_MODE = _Switch(torch.is_grad_enabled, torch._C._set_grad_enabled)
_SWITCHES = [*(_precision(*each) for each in _PRECISIONS), *_FLAG_SWITCHES, _GRAD_MODE]

_flags = [switch.get for switch in _FLAG_SWITCHES]
_effective = {
    kind: [*(_precision(b, each).get for b in _BACKENDS for each in depends_on), *_flags]
    for kind, depends_on in (("matmul", ["matmul"]), ("conv", ["conv", "matmul"]))
}
"""The getters that decide how products of a kind are computed. The getter of a kind's precision, if
that is not set, returns the precision of its backend, or of all backends."""

_CastInside = tuple[str, torch.dtype] | None
"""The device type and dtype of autocast inside of a kernel; None where it is off."""

ProductSettings = tuple[Any, ...]
"""What is cast inside, then the values of the switches for products of matrices, in their order."""

_known: dict[tuple[Any, ...], ProductSettings] = {}


def current_for_products(kind: str, cast_inside: _CastInside = None) -> ProductSettings:
    """The settings of this process for products of matrices of `kind`, ``matmul``, ``conv`` or
    ``rnn``: the current ones, or earlier ones with the same effect, as reading all takes 1 us.
    """
    if kind == "rnn":
        return (cast_inside, *[switch.get() for switch in _SWITCHES])
    effective = (kind, cast_inside, *[get() for get in _effective[kind]])
    settings = _known.get(effective)
    if settings is None:
        now = [switch.get() for switch in _SWITCHES[:-1]]
        settings = _known[effective] = (cast_inside, *now)
    return settings


def _applied_to_products(settings: ProductSettings) -> Iterator[Restoring]:
    if settings and settings[0] is not None:
        yield backends.autocast(*settings[0])
    for switch, value in zip(_SWITCHES, settings[1:], strict=False):  # grad mode: for "rnn" only
        yield Setting(switch.get, switch.set, value)


def takes_onednn_lstm(sequence: torch.Tensor, states: Any) -> bool:
    """Whether an LSTM on the CPU is oneDNN's in eager mode: use_mkldnn in RNN.cpp."""
    has_projections = states[0].shape[2] != states[1].shape[2]
    if has_projections or not sequence.numel() or not torch.backends.mkldnn.enabled:
        return False
    return backends.has_onednn_lstm(sequence.dtype)

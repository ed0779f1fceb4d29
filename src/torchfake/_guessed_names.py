"""Guessed names that a public module does not have, answered with those that it has.

Input: a public module, asked for a name, or called. Output: an error of one line that says what to
write. Invariant: a name that is there is found as fast as in any module; torch is not imported; to
``hasattr`` a name that is missing is missing.
"""

from __future__ import annotations

import difflib
import opcode
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torchfake._gpu_names import listed
from torchfake.errors import DOCUMENTATION, CallError

_PAGE = DOCUMENTATION + "api.md"
_LONGEST = 60  # longer names are compared with none: that takes the square of their length

_FAKE_MODE = "fake_mode()"
_SUMMARY = "summary(module, inputs)"
_ELSEWHERE = {
    # of torch's FakeTensorMode, and guesses at ours
    **dict.fromkeys(("FakeMode", "FakeTensorMode", "FakeTensorConverter"), _FAKE_MODE),
    **dict.fromkeys(("from_tensor", "fake", "to_fake", "fakeify", "make_fake"), "fake_like(x)"),
    **dict.fromkeys(("fake_tensor", "fake_module", "to_meta", "from_real"), "fake_like(x)"),
    "fake_cuda": "fake_mode(fake_cuda=True)",
    # of accelerate, transformers, deepspeed, fairscale and torch
    **dict.fromkeys(
        ("init_empty_weights", "init_on_device", "no_init_weights", "skip_init", "OnDevice"),
        "fake_mode(), or torchfake.deferred_init(Module, ...) to materialize it later",
    ),
    **dict.fromkeys(
        ("load_checkpoint_and_dispatch", "load_checkpoint_in_model", "load_checkpoint", "load"),
        "materialize_module(module, checkpoint=PATH)",
    ),
    **dict.fromkeys(("materialize_model", "to_empty", "to_real"), "materialize_module(module)"),
    **dict.fromkeys(
        ("infer_auto_device_map", "dispatch_model", "shard", "parallelize"),
        "plan(model_fn, mesh_shape=8, parallelize=...)",
    ),
    **dict.fromkeys(
        ("estimate_memory", "memory", "memory_usage", "peak_memory", "estimate_zero2_memory"),
        "estimate(module, inputs)",
    ),
    **dict.fromkeys(("LLM", "serve", "ServeConfig"), "fit(model, 'h100', serve=Serve(8192))"),
    # of torchinfo, fvcore, thop
    **dict.fromkeys(
        ("FlopCountAnalysis", "flops", "flop_count", "count_flops", "get_flops", "macs"), _SUMMARY
    ),
    **dict.fromkeys(("parameter_count", "count_parameters", "num_params"), "summary(module)"),
    **dict.fromkeys(("torchinfo", "info", "tree", "show", "print_model"), "summary(module)"),
    **dict.fromkeys(("draw_graph", "draw", "plot", "visualize"), "graph_of(module, inputs)"),
    **dict.fromkeys(
        ("Profile", "GPUProfile", "GPU", "gpus", "list_gpus"),
        "profiles(), or torchfake.CudaProfile(...) for one of your own",
    ),
    **dict.fromkeys(("max_batch", "find_batch_size", "fits", "will_it_fit"), "fit(module, 'h100')"),
}
"""By a name that people look for in torchfake, what to write."""


class _Module(ModuleType):
    """A module that says what to call in its place."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CallError(f"{self.__name__} is a module: write {self.__dict__['_called']}")


def answering_guesses(module: str, call: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a public module, of which calls are answered too.

    Args:
        module: its full name.
        call: what to write where the module itself is called.
    """
    found = sys.modules[module]
    found.__dict__["_called"] = call
    found.__class__ = _Module  # looks up names as any module does

    def __getattr__(name: str) -> Any:
        raise missing(module, name)

    return __getattr__


def missing(module: str, name: str, elsewhere: Mapping[str, str] | None = None) -> Exception:
    """The error of a module that lacks a name, for its ``__getattr__`` to raise.

    Args:
        module: its full name.
        name: what it was asked for.
        elsewhere: by the names that people look for here, what to write after ``torchfake.``.
    """
    advice = _advice(module, name, elsewhere or {})
    if _is_imported(sys._getframe(2)):  # which makes an error of its own of an AttributeError
        return ImportError(f"cannot import name {name!r} from {module!r}{advice}")
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}")


def _is_imported(frame: Any) -> bool:
    """Whether the code that runs in a frame is at ``from module import name``."""
    code = frame.f_code.co_code
    return bool(code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"])


def _advice(module: str, name: str, elsewhere: Mapping[str, str]) -> str:
    if name.startswith("_") or len(name) > _LONGEST:
        return ""
    if name in elsewhere:
        return f"; write torchfake.{elsewhere[name]}"
    if name in _ELSEWHERE:
        return f"; write torchfake.{_ELSEWHERE[name]}"
    close = _close(name, module)
    return f"; did you mean {listed(close)}?" if close else f"; all names are in {_PAGE}"


def _close(name: str, module: str) -> list[str]:
    """The names closest to one, in this module or else in all of torchfake."""
    for home in dict.fromkeys((module, "torchfake")):
        known = vars(sys.modules[home]).get("__all__", ())
        by_lower = {n.lower().replace("_", ""): n for n in known}
        plain = name.lower().replace("_", "")
        found = difflib.get_close_matches(plain, by_lower, n=3, cutoff=0.7)
        if found:
            return [f"{home}.{by_lower[close]}" for close in found]
    return []

"""Fake tensors for PyTorch: the public names, nothing else.

Inspection, plans and deferred initialization are imported when one of their names is first used. On
the command line this applies to all names, because ``--help`` does not need torch.
"""

import gc as _gc
import importlib as _importlib
import os as _os
import sys as _sys
import types as _types
import typing as _typing

from torchfake import errors as errors

if _typing.TYPE_CHECKING:
    from torchfake._core.gpu_profiles import CudaProfile as CudaProfile
    from torchfake._core.gpu_profiles import profiles as profiles
    from torchfake._recording.graph_text import graph as graph
    from torchfake._tensor.fake_tensor import FakeTensor as FakeTensor
    from torchfake._unknown_values.answer_log import Answer as Answer
    from torchfake._unknown_values.answer_log import Answers as Answers
    from torchfake._unknown_values.question import Question as Question
    from torchfake.checkpoint import save_materialized as save_materialized
    from torchfake.compat import install_as_torchdistx as install_as_torchdistx
    from torchfake.deferred import deferred_init as deferred_init
    from torchfake.deferred import deferred_mode as deferred_mode
    from torchfake.deferred import dematerialize_module as dematerialize_module
    from torchfake.deferred import is_deferred as is_deferred
    from torchfake.deferred import materialize_module as materialize_module
    from torchfake.deferred import materialize_tensor as materialize_tensor
    from torchfake.distributed.plan import plan as plan
    from torchfake.distributed.serving.serve import serve as serve
    from torchfake.fake import answering as answering
    from torchfake.fake import fake_like as fake_like
    from torchfake.fake import fake_mode as fake_mode
    from torchfake.fake import is_fake as is_fake
    from torchfake.fake import meta_like as meta_like
    from torchfake.inspect.check import check as check
    from torchfake.inspect.contents.diff import diff as diff
    from torchfake.inspect.dataflow.model_graph import graph_of as graph_of
    from torchfake.inspect.figures.report import report as report
    from torchfake.inspect.gpu_files import read_profiles as read_profiles
    from torchfake.inspect.inputs.example_inputs import example_inputs as example_inputs
    from torchfake.inspect.memory.estimate import estimate as estimate
    from torchfake.inspect.memory.fit import fit as fit
    from torchfake.inspect.serve import Serve as Serve
    from torchfake.inspect.summary import summary as summary
    from torchfake.meta_init import clear_meta_init_cache as clear_meta_init_cache
    from torchfake.meta_init import is_meta_init as is_meta_init
    from torchfake.meta_init import materialize as materialize
    from torchfake.meta_init import meta_init as meta_init

_NAMES = {
    "_unknown_values.answer_log": ("Answer", "Answers"),
    "_unknown_values.question": ("Question",),
    "_core.gpu_profiles": ("CudaProfile", "profiles"),
    "_recording.graph_text": ("graph",),
    "_tensor.fake_tensor": ("FakeTensor",),
    "checkpoint": ("save_materialized",),
    "compat": ("install_as_torchdistx",),
    "deferred": (
        "deferred_init",
        "deferred_mode",
        "dematerialize_module",
        "is_deferred",
        "materialize_module",
        "materialize_tensor",
    ),
    "fake": ("answering", "fake_like", "fake_mode", "is_fake", "meta_like"),
    "inspect": (
        "Serve",
        "check",
        "diff",
        "estimate",
        "example_inputs",
        "fit",
        "graph_of",
        "read_profiles",
        "report",
        "summary",
    ),
    "meta_init": ("clear_meta_init_cache", "is_meta_init", "materialize", "meta_init"),
    "distributed": ("plan", "serve"),
}
"""The public names, by the module that they are imported from."""

_LATER = (
    "_recording.graph_text",
    "inspect",
    "distributed",
    "deferred",
    "meta_init",
    "checkpoint",
    "compat",
)
"""Modules in :data:`_NAMES` that most programs do not need, or not at once."""


_IN_SUBMODULES = (
    "distributed.Links",
    "distributed.Strategy",
    "distributed.plan_target",
    "distributed.search_layouts",
    "distributed.search_servers",
    "fx.export",
    "fx.make_fx",
    "fx.symbolic_trace",
    "inspect.set_units",
    "inspect.weights",
)
"""Names in submodules, suggested if a program looks them up in this package."""


class _Package(_types.ModuleType):
    """The class of this package, in which ``meta_init`` names both a class and a submodule."""

    @property
    def meta_init(self) -> _typing.Any:
        if "meta_init" not in vars(self):
            vars(self)["meta_init"] = _importlib.import_module("torchfake.meta_init").meta_init
        return vars(self)["meta_init"]

    @meta_init.setter
    def meta_init(self, value: _typing.Any) -> None:
        if not isinstance(value, _types.ModuleType):  # importing the submodule would set it
            vars(self)["meta_init"] = value

    @meta_init.deleter
    def meta_init(self) -> None:
        vars(self).pop("meta_init", None)


_sys.modules[__name__].__class__ = _Package


def _import_from(home: str) -> _typing.Any:
    module = _importlib.import_module(f"torchfake.{home}")
    names = [name for name in _NAMES[home] if name != "meta_init"]
    globals().update({name: getattr(module, name) for name in names})
    return module


def _import_core(*packages: str) -> None:
    """Import all modules but :data:`_LATER`, then the `packages`, without garbage collection: a
    collection, over all objects of torch too, would take half as long as the import, and find no
    garbage. The objects then move to the oldest generation, or the next allocation would start a
    collection.
    """
    was_enabled = _gc.isenabled()
    _gc.disable()
    try:
        for home in _NAMES:
            if home not in _LATER:
                _import_from(home)
        for package in packages:
            _importlib.import_module(f"torchfake.{package}")
    finally:
        if was_enabled:
            if not _gc.get_freeze_count():  # unfreeze() would also thaw the program's own objects
                _gc.freeze()
                _gc.unfreeze()
            _gc.enable()


def __getattr__(name: str) -> _typing.Any:
    if name in _LATER:
        return _import_from(name)
    if name in ("fx", "observe"):
        return _importlib.import_module(f"torchfake.{name}")
    for home, names in _NAMES.items():
        if name in names:
            return getattr(_import_from(home), name)
    hint = "" if name.startswith("_") else _did_you_mean(name)
    # Without the argument `obj`, Python adds no suggestion of its own.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)


def _did_you_mean(name: str) -> str:
    paths = {path.rpartition(".")[2]: f"torchfake.{path}" for path in (*_IN_SUBMODULES, *__all__)}
    return errors.did_you_mean(name, paths, paths.__getitem__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(home for home in _LATER if home.isidentifier())})


def _is_command() -> bool:
    """Whether this process was started as the ``torchfake`` command."""
    arguments = getattr(_sys, "argv", None) or [""]
    if arguments[0] == "-m":  # Python has not replaced "-m" by the file's path yet
        given = getattr(_sys, "orig_argv", [])
        return any(given[i : i + 2] == ["-m", "torchfake"] for i in range(len(given)))
    return _os.path.basename(arguments[0]) in ("torchfake", "torchfake.exe")


_IS_COMMAND = _is_command()

__version__ = "1.0.0"

__all__ = [
    "Answer",
    "Answers",
    "CudaProfile",
    "FakeTensor",
    "Question",
    "Serve",
    "answering",
    "check",
    "clear_meta_init_cache",
    "deferred_init",
    "deferred_mode",
    "dematerialize_module",
    "diff",
    "errors",
    "estimate",
    "example_inputs",
    "fake_like",
    "fake_mode",
    "fit",
    "graph",
    "graph_of",
    "install_as_torchdistx",
    "is_deferred",
    "is_fake",
    "is_meta_init",
    "materialize",
    "materialize_module",
    "materialize_tensor",
    "meta_init",
    "meta_like",
    "plan",
    "profiles",
    "read_profiles",
    "report",
    "save_materialized",
    "serve",
    "summary",
]

if not _IS_COMMAND:
    _import_core()

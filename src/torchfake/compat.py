"""A stand-in for torchdistx, for code that imports it.

Enters: nothing. Leaves: modules by the names of torchdistx that hold our functions. Invariant: a
torchdistx that is installed is never hidden without a word.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

from torchfake import deferred, fake

_NAMES = {
    "fake": (fake, ("fake_mode", "is_fake", "meta_like")),
    "deferred_init": (
        deferred,
        ("deferred_init", "is_deferred", "materialize_module", "materialize_tensor"),
    ),
}


def install_as_torchdistx() -> None:
    """Let ``import torchdistx`` find torchfake, in this process.

    PyTorch's FSDP looks for torchdistx when it is first imported; where that was before, it is
    told. Calling this twice is as calling it once.

    Raises:
        RuntimeError: if the real torchdistx is installed.

    Source: torchdistx 0.2; the manner is that of ``pymysql.install_as_MySQLdb``.

    >>> install_as_torchdistx()
    >>> from torchdistx.deferred_init import deferred_init
    """
    if not isinstance(sys.modules.get("torchdistx"), _StandIn):
        if "torchdistx" in sys.modules or importlib.util.find_spec("torchdistx") is not None:
            raise RuntimeError(
                "torchdistx itself is installed: uninstall it (pip uninstall torchdistx) to let "
                "torchfake stand in for it"
            )
        _register()
    _tell_fsdp()


class _StandIn(types.ModuleType):
    """A module that is not there, to those who look for its specification too."""

    def __init__(self, name: str, doc: str | None) -> None:
        super().__init__(name, doc)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)


def _register() -> None:
    package = _StandIn("torchdistx", "torchfake, standing in for torchdistx.")
    package.__path__ = []
    sys.modules["torchdistx"] = package
    for name, (source, names) in _NAMES.items():
        module = _StandIn(f"torchdistx.{name}", source.__doc__)
        for function in names:
            setattr(module, function, getattr(source, function))
        setattr(package, name, module)
        sys.modules[f"torchdistx.{name}"] = module


def _tell_fsdp() -> None:
    """FSDP keeps what it found when it was imported in three names."""
    fsdp = sys.modules.get("torch.distributed.fsdp._init_utils")
    if fsdp is not None:
        package = sys.modules["torchdistx"]
        vars(fsdp).update(
            _TORCHDISTX_AVAIL=True, deferred_init=package.deferred_init, fake=package.fake
        )

"""A substitute for torchdistx, for code that imports it.

Input: nothing. Output: modules in ``sys.modules`` with torchdistx's names, which hold torchfake's
functions. Invariant: an installed torchdistx is never hidden: an error is raised instead.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

from torchfake import deferred, fake

_EXPORTS = {
    "fake": (fake, ("fake_mode", "is_fake", "meta_like")),
    "deferred_init": (
        deferred,
        ("deferred_init", "is_deferred", "materialize_module", "materialize_tensor"),
    ),
}


_VERSION = "0.2.0+torchfake"
"""The version of torchdistx whose functions these are."""


def install_as_torchdistx() -> None:
    """Make ``import torchdistx`` use torchfake in this process.

    PyTorch's FSDP looks for torchdistx when FSDP is first imported; if that has already happened,
    FSDP is updated. Calling this function again has no effect.

    Raises:
        RuntimeError: if the real torchdistx is installed.

    Source: torchdistx 0.2; the pattern is that of ``pymysql.install_as_MySQLdb``.

    >>> install_as_torchdistx()
    >>> from torchdistx.deferred_init import deferred_init
    """
    if not isinstance(sys.modules.get("torchdistx"), _SubstituteModule):
        if "torchdistx" in sys.modules or importlib.util.find_spec("torchdistx") is not None:
            raise RuntimeError(
                "torchdistx itself is installed: uninstall it (pip uninstall torchdistx) to let "
                "torchfake stand in for it"
            )
        _register_modules()
    _update_fsdp()


class _SubstituteModule(types.ModuleType):
    """A module without a file, but with a specification, for ``importlib.util.find_spec``."""

    def __init__(self, name: str, doc: str | None) -> None:
        super().__init__(name, doc)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)


def _register_modules() -> None:
    package = _SubstituteModule("torchdistx", "torchfake, standing in for torchdistx.")
    package.__path__ = []
    vars(package)["__version__"] = _VERSION
    sys.modules["torchdistx"] = package
    for name, (source, names) in _EXPORTS.items():
        module = _SubstituteModule(f"torchdistx.{name}", source.__doc__)
        for function in names:
            setattr(module, function, getattr(source, function))
        setattr(package, name, module)
        sys.modules[f"torchdistx.{name}"] = module


def _update_fsdp() -> None:
    """Set the three names in which FSDP stores whether torchdistx could be imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp._init_utils")
    if fsdp is not None:
        package = sys.modules["torchdistx"]
        vars(fsdp).update(
            _TORCHDISTX_AVAIL=True, deferred_init=package.deferred_init, fake=package.fake
        )

"""Code that imports torchdistx, such as FSDP1, finds torchfake."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchfake
from torchfake import install_as_torchdistx


@pytest.fixture
def remove_torchdistx() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchdistx"]:
        del sys.modules[name]


@pytest.mark.usefixtures("remove_torchdistx")
def test_names() -> None:
    install_as_torchdistx()
    install_as_torchdistx()
    import torchdistx.fake  # type: ignore[import-not-found]
    from torchdistx import deferred_init, fake
    from torchdistx.deferred_init import (  # type: ignore[import-not-found]
        is_deferred,
        materialize_module,
        materialize_tensor,
    )

    assert torchdistx.__version__ == "0.2.0+torchfake"
    assert torchdistx.fake is fake
    assert deferred_init.deferred_init is torchfake.deferred_init
    layer = deferred_init.deferred_init(torch.nn.Linear, 2, 2)
    assert is_deferred(layer)
    assert fake.is_fake(layer.weight)
    assert fake.meta_like(layer.weight).is_meta
    materialize_tensor(layer.weight)
    materialize_module(layer, buffers_only=False, check_fn=lambda _: True)
    assert importlib.util.find_spec("torchdistx") is not None


@pytest.mark.usefixtures("remove_torchdistx")
def test_an_installed_torchdistx_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdistx", sys)
    with pytest.raises(RuntimeError, match="pip uninstall torchdistx"):
        install_as_torchdistx()


@pytest.mark.parametrize("imported", ["first", "later"])
def test_fsdp(tmp_path: Path, imported: str) -> None:
    """A step on two gloo processes, with FSDP imported before install_as_torchdistx or after it."""
    # As a module: as a script, it would find tests/inspect in place of Python's inspect.
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker_fsdp1", str(tmp_path / "store"), imported],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "equal"

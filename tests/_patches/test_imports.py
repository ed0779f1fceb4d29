"""Modules that are imported in a mode are as they are when they are imported before it."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import runpy
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, is_fake, materialize_module, meta_init

MODES: dict[str, Callable[[], Any]] = {
    "fake": fake_mode,
    "fake_cuda": lambda: fake_mode(fake_cuda=True),
    "deferred": deferred_mode,
    "deferred_cuda": lambda: deferred_mode(fake_cuda=True),
}
CONSTANTS = """
import torch
from torch import nn

NUMBERS = torch.tensor([1.0, 2.0])
RANGE = torch.arange(3)
BUFFER = torch.frombuffer(bytearray(8), dtype=torch.int32)
HAS_CUDA = torch.cuda.is_available()

class Holder:
    table = torch.zeros(2)

SUM = RANGE.sum().item()
"""
DRAWS = """
import torch

NOISE = torch.rand(100)
LAYER = torch.nn.Linear(3, 3)
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module to import; it is forgotten after the test."""
    names: list[str] = []

    def write_module(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        names.append(name)
        return name

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write_module
    for name in names:
        sys.modules.pop(name, None)


def tensors_of(module: Any) -> list[torch.Tensor]:
    return [module.NUMBERS, module.RANGE, module.BUFFER, module.Holder.table]


@pytest.mark.parametrize("mode", MODES)
def test_constants_are_real(mode: str, write: Write) -> None:
    write("inner_constants", CONSTANTS)
    name = write("constants", f"{CONSTANTS}import inner_constants\n")
    with MODES[mode]():
        module = importlib.import_module(name)
        assert is_fake(torch.zeros(2))
        assert is_fake(module.NUMBERS + 1)
    for each in (module, module.inner_constants):
        assert [is_fake(t) for t in tensors_of(each)] == [False] * 4
        assert (each.NUMBERS.tolist(), each.SUM) == ([1.0, 2.0], 3)
        assert each.HAS_CUDA is torch.cuda.is_available()


@pytest.mark.parametrize("mode", ["fake_cuda", "deferred_cuda"])
def test_a_default_device_that_only_the_mode_has(mode: str, write: Write) -> None:
    with MODES[mode]():
        with torch.device("cuda"):
            modules = [importlib.import_module(write("in_context", CONSTANTS))]
            assert torch.zeros(1).device == torch.device("cuda", 0)
        torch.set_default_device("cuda")
        modules.append(importlib.import_module(write("by_default", CONSTANTS)))
        assert torch.zeros(1).device == torch.device("cuda", 0)
        torch.set_default_device(None)
    found = [t for module in modules for t in tensors_of(module)]
    assert {(t.device.type, is_fake(t)) for t in found} == {("cpu", False)}
    assert torch.zeros(1).device == torch.device("cpu")


def test_other_contexts_are_those_of_the_import(write: Write) -> None:
    name = write("in_contexts", "import torch\nNUMBERS = torch.tensor([1.0, 2.0])\n")
    torch.set_default_dtype(torch.float64)
    try:
        with fake_mode(), torch.device("meta"):
            module = importlib.import_module(name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert module.NUMBERS.device.type == "meta"
    assert module.NUMBERS.dtype == torch.float64


def test_all_ways_to_import(write: Write, tmp_path: Path) -> None:
    name = write("any_way", CONSTANTS)
    file = str(tmp_path / f"{name}.py")
    spec: Any = importlib.util.spec_from_file_location("by_file", file)
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("zipped_constants.py", CONSTANTS)
    sys.path.insert(0, str(tmp_path / "in.zip"))
    with fake_mode():
        by_file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(by_file)
        found = [by_file, importlib.reload(importlib.import_module(name))]
        found.append(importlib.import_module("zipped_constants"))
        lazily: Any = importlib.util.module_from_spec(spec)
        importlib.util.LazyLoader(spec.loader).exec_module(lazily)
        assert lazily.SUM == 3
    sys.path.remove(str(tmp_path / "in.zip"))
    del sys.modules["zipped_constants"]
    for module in [*found, lazily]:
        assert [is_fake(t) for t in tensors_of(module)] == [False] * 4


def test_scripts_that_are_run_are_in_the_mode(write: Write, tmp_path: Path) -> None:
    name = write("as_script", f"{CONSTANTS}import inner\n")
    write("inner", CONSTANTS)
    with fake_mode():
        found = runpy.run_path(str(tmp_path / f"{name}.py"))
        module = runpy.run_module(name)
        namespace: dict[str, Any] = {}
        exec(CONSTANTS, namespace)
    for each in (found, module, namespace):
        assert is_fake(each["NUMBERS"])
    assert not is_fake(found["inner"].NUMBERS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", [DRAWS, "", "import torch\ntorch.manual_seed(3)\n"])
def test_draws_are_those_of_eager(mode: str, source: str, write: Write) -> None:
    def program(name: str) -> Any:
        torch.manual_seed(0)
        before = torch.rand(50)
        module = importlib.import_module(name)
        made = [before, torch.rand(5), nn.Linear(4, 4).weight.detach(), torch.randn(3)]
        return module, made, torch.get_rng_state()

    expected, values, state = program(write("eager_draws", source))
    with MODES[mode]():
        module, found, after = program(write("draws", source))
        assert [f.tolist() for f in found] == [v.tolist() for v in values]
        assert torch.equal(after, state)
    if source == DRAWS:
        assert torch.equal(module.NOISE, expected.NOISE)
        assert torch.equal(module.LAYER.weight, expected.LAYER.weight)


def test_imports_that_draw_nothing_move_no_generator(write: Write) -> None:
    name = write("no_draws", CONSTANTS)
    state = torch.get_rng_state()
    with fake_mode():
        torch.rand(1000)
        importlib.import_module(name)
        torch.rand(1000)
    assert torch.equal(torch.get_rng_state(), state)


def test_modules_in_modes_of_their_own(write: Write) -> None:
    name = write(
        "own_mode",
        """
        import threading
        import torch
        from torchfake import deferred_init, fake_mode

        with fake_mode():
            FAKE = torch.zeros(3)
        LAYER = deferred_init(torch.nn.Linear, 3, 3)
        FOUND = []
        thread = threading.Thread(target=lambda: FOUND.append(torch.ones(2)))
        thread.start()
        thread.join()
        """,
    )
    torch.manual_seed(0)
    expected = nn.Linear(3, 3)
    torch.manual_seed(0)
    with fake_mode(answer="typical"):
        module = importlib.import_module(name)
        assert is_fake(torch.zeros(2))
    assert is_fake(module.FAKE)
    assert torch.equal(materialize_module(module.LAYER).weight, expected.weight)
    assert not is_fake(module.FOUND[0])


def test_modules_that_cannot_be_imported(write: Write) -> None:
    name = write("broken", "import torch\nX = torch.ones(2)\nraise ValueError('broken')\n")
    with fake_mode():
        with pytest.raises(ValueError, match=r"^broken$"):
            importlib.import_module(name)
        assert is_fake(torch.zeros(2))
    assert name not in sys.modules


def test_on_threads_and_under_meta_init(write: Write) -> None:
    found: list[Any] = []
    name = write("on_thread", CONSTANTS)
    with fake_mode():
        thread = threading.Thread(target=lambda: found.append(importlib.import_module(name)))
        thread.start()
        thread.join()
    with meta_init():
        found.append(importlib.import_module(write("in_meta_init", CONSTANTS)))
    for module in found:
        assert [t.device.type for t in tensors_of(module)] == ["cpu"] * 4
        assert [is_fake(t) for t in tensors_of(module)] == [False] * 4


def test_models_that_are_built_while_they_are_imported_are_real(write: Write) -> None:
    with deferred_mode():
        module = importlib.import_module(write("builds", DRAWS))
        layer = nn.Sequential(module.LAYER, nn.Linear(3, 3))
    assert not is_fake(module.LAYER)
    materialize_module(layer)
    assert layer[0] is module.LAYER


def test_loaders_are_as_before_after_the_mode() -> None:
    loaders = importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader
    before = [loader.exec_module for loader in loaders]
    with fake_mode():
        assert [loader.exec_module for loader in loaders] != before
    assert [loader.exec_module for loader in loaders] == before
    assert not any("exec_module" in vars(loader) for loader in loaders)


def test_what_a_module_adds_to_lists_of_torch_in_a_mode_stays() -> None:
    """DTensor's module adds its class to those whose optimizers update many tensors at once."""
    program = """
import sys
import torch
from torchfake import fake_mode

owners = [sys.modules[name] for name in ("torch.optim.optimizer", "torch.utils._foreach_utils")]
with fake_mode(fake_cuda=True):
    from torch.distributed.tensor import DTensor

    assert all(DTensor in owner._foreach_supported_types for owner in owners)
for owner in owners:
    assert owner._foreach_supported_types.count(DTensor) == 1
    assert type(owner._foreach_supported_types) is list
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""Every public function of torch's modules of accelerators is answered, refused, or torch's own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchfake import fake_mode
from torchfake._patches.accelerators import cuda, others, stand_ins
from torchfake._patches.accelerators.tables import Table, public_names
from torchfake.errors import UnsupportedOpError

TABLES = [cuda.TABLE, *others.TABLES, others.ACCELERATOR]
TABLES = [table for table in TABLES if not table.module.startswith("torch.backends")]


def public_modules(root: str) -> Iterator[Any]:
    """A module of torch and its public submodules, imported."""
    module = importlib.import_module(root)
    yield module
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), root + "."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def names_of(root: str) -> dict[int, tuple[Any, list[str]]]:
    """Each public function or class of a module, and the names that it has there."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for module in public_modules(root):
        prefix = module.__name__.removeprefix(root).removeprefix(".")
        for name in public_names(module):
            value = getattr(module, name)
            full = f"{prefix}.{name}" if prefix else name
            found.setdefault(id(value), (value, []))[1].append(full)
    return found


def machine_of(table: Table) -> fake_mode:
    return fake_mode(fake_device=table.device_type or "xpu")


def listed(table: Table, name: str) -> str | None:
    """In which part of a table a name is; None if the table does not list it."""
    is_tensor_type = table.module == "torch.cuda" and name in stand_ins.TENSOR_TYPES
    if is_tensor_type or name in table.answered:
        return "answered"
    submodule = name.partition(".")[0]
    if name in table.refused or submodule in table.refused:
        return "refused"
    return "unchanged" if table.unchanged & {name, submodule} else None


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.module)
def test_every_public_function_is_listed(table: Table) -> None:
    """What a new torch brings has to be added to the table of its module."""
    unlisted = [
        names
        for _, names in names_of(table.module).values()
        if not any(listed(table, name) for name in names)
    ]
    assert not unlisted


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.module)
def test_what_is_refused_says_so_by_name(table: Table) -> None:
    named = [names for _, names in names_of(table.module).values()]
    refused = [names[0] for names in named if "refused" in {listed(table, n) for n in names}]
    with machine_of(table):
        assert refused
        for name in refused:
            with pytest.raises(UnsupportedOpError, match=f"{name} does not work on fake"):
                attribute_at(table.module, name)()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.module)
def test_answers_take_the_arguments_of_the_originals(table: Table) -> None:
    """By position and by keyword: the signatures are those that torch documents."""
    for name, answer in table.answered.items():
        original = attribute_at(table.module, name)
        if not isinstance(original, types.FunctionType):
            continue
        parameters = inspect.signature(original).parameters.values()
        takes = inspect.signature(answer)
        named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_ONLY] + named
        required = [p.name for p in positional if p.default is p.empty]
        takes.bind(None, *(p.name for p in positional))
        takes.bind(None, *required)
        if named == positional:
            takes.bind(None, **{p.name: None for p in named})


def test_what_is_unchanged_runs_on_what_is_answered() -> None:
    with fake_mode(fake_cuda=2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_80,code=sm_80"
        assert torch.cuda.is_tf32_supported()
        assert "Allocated memory" in torch.cuda.memory_summary()
        assert torch.cuda.memory_cached() == torch.cuda.max_memory_cached() == 0
        torch.cuda.reset_max_memory_allocated()
        torch.cuda.reset_max_memory_cached()
        assert not torch.cuda.amp.common.amp_definitely_not_available()
        with torch.cuda.nvtx.range("here"), torch.cuda.profiler.profile():
            pass
        with torch.cuda.stream(torch.cuda.Stream()) as _, torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
    with fake_mode(fake_device="xpu", num_devices=2):
        with torch.xpu.stream(torch.xpu.Stream()), torch.xpu.device(1):
            assert torch.xpu.current_device() == 1
        with torch.xpu.device_of(torch.ones(1, device="xpu:1")):
            assert torch.xpu.current_device() == 1
        with torch.accelerator.device_index(1):
            assert torch.accelerator.current_device_index() == 1


def attribute_at(root: str, name: str) -> Any:
    value: Any = sys.modules[root]
    for part in name.split("."):
        value = getattr(value, part, None)
    return value

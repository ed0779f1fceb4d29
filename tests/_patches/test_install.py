"""Patches are installed while a mode is on; after it, and on other threads, torch is as before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode, is_fake, meta_init
from torchfake._core import modes
from torchfake._patches import install, patch
from torchfake._patches.install import as_outside_modes
from torchfake._torch import backends


def attributes_of_torch() -> dict[str, dict[str, Any]]:
    owners = [
        torch, torch.cuda, torch.Tensor, torch._C.TensorBase, torch.nn.init, torch.nn.functional,
        torch.nn.Module, torch.nn.Parameter, torch.random, torch.serialization, torch.utils.data,
        torch.cuda.random, torch.cuda.memory, torch.multiprocessing, torch.autograd, torch.optim,
        torch._C, torch.nn.parameter, torch.accelerator,
        torch.mps, torch.xpu, torch.mtia, torch.backends.mps, torch.backends.cuda, torch.overrides,
        torch.cuda.nvtx, torch.cuda.profiler, torch.cuda.graphs, torch.cuda.nccl,
        torch.mps.profiler, torch.xpu.random, torch.xpu.memory, torch.accelerator.memory,
        torch.accelerator.device_index,
        torch._C._nn, torch.backends.cudnn, vars(torch.backends.cudnn)["m"], torch.fft,
    ]  # fmt: skip
    return {f"{o.__name__}@{i}": dict(vars(o)) for i, o in enumerate(owners)}


def assert_same_attributes(before: dict[str, dict[str, Any]]) -> None:
    for owner, attributes in attributes_of_torch().items():
        known = before[owner]
        assert {n for n, v in known.items() if attributes.get(n, known) is not v} == set(), owner
        assert {n for n in attributes if n not in known} == set(), owner


class Stop(Exception):
    """Ends a mode early."""


def _after_exception() -> None:
    with contextlib.suppress(Stop), fake_mode(fake_cuda=True):
        torch.ones(1)
        raise Stop


def _nested() -> None:
    with fake_mode(), contextlib.suppress(Stop), fake_mode(fake_cuda=2), fake_mode(fake_cuda=True):
        torch.ones(1, device="cuda")
        raise Stop


def _of_several_types() -> None:
    """The machine of the innermost mode is the one that torch describes."""
    with fake_mode(fake_device="xpu", num_devices=3):
        assert torch.accelerator.device_count() == 3
        with fake_mode(fake_device="hpu"), fake_mode(fake_device="mps"):
            assert torch.ones(1, device=0).device == torch.device("mps:0")
            assert torch.backends.mps.is_available()
            assert not torch.xpu.is_available()
        with fake_mode(fake_cuda=2), meta_init():
            torch.ones(1, device="cuda:5")
        assert torch.ones(1, device=2).device == torch.device("xpu:2")
        assert torch.get_device_module() is torch.xpu


def _two_threads() -> None:
    """The second thread's mode outlives the first's."""
    first_is_out, second_is_in = threading.Event(), threading.Event()

    def second() -> None:
        with fake_mode(fake_cuda=True):
            second_is_in.set()
            first_is_out.wait(10)
            torch.ones(1, device="cuda")

    thread = threading.Thread(target=second)
    with fake_mode():
        thread.start()
        second_is_in.wait(10)
    first_is_out.set()
    thread.join()


@pytest.mark.parametrize(
    "use",
    [
        lambda: fake_mode(fake_cuda=True).__enter__().__exit__(None, None, None),
        _after_exception,
        _nested,
        _two_threads,
        _of_several_types,
        lambda: fake_mode(fake_cuda=True)(lambda: torch.ones(1, device="cuda"))(),
    ],
    ids=["plain", "exception", "nested", "two_threads", "types", "decorator"],
)
def test_torch_is_left_as_it_was(use: Callable[[], Any]) -> None:
    """No attribute of torch's modules and classes differs, whatever happened in the mode."""
    with fake_mode(fake_cuda=True):
        pass  # what torch imports lazily is imported now
    _of_several_types()
    before = attributes_of_torch()
    use()
    assert_same_attributes(before)


def test_torch_remembers_nothing_of_a_mode() -> None:
    """What torch caches for the process, it does not keep from a mode: its lists of its own
    functions, and the module of the accelerator.
    """
    for cached in backends.caches_of_functions():
        cached.cache_clear()
    before = torch.get_device_module()
    with fake_mode(fake_cuda=True):
        torch.get_device_module()
        torch.overrides.is_tensor_method_or_property(torch.Tensor.to)
        with torch.device("cuda"):
            assert torch.as_tensor([1]).device.type == "cuda"
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.to)
    assert torch.get_device_module() is before
    assert _made_on_meta()


def _made_on_meta() -> bool:
    with torch.device("meta"):
        return all(f([1]).is_meta for f in (torch.as_tensor, torch.asarray, torch.tensor))


def test_other_threads_see_the_real_torch_meanwhile() -> None:
    """While one thread is in a mode, another has real tensors and no CUDA it does not have."""
    seen: list[Any] = []

    def other() -> None:
        begin.wait(60)
        seen.append((is_fake(torch.ones(1)), torch.cuda.is_available(), torch.cuda.device_count()))

    expected = (False, torch.cuda.is_available(), torch.cuda.device_count())
    begin = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with fake_mode(fake_cuda=4):
        begin.set()
        thread.join()
    assert seen == [expected]


def test_interrupted_while_entering(monkeypatch):
    """Ctrl-C between two replacements: none is left, and no mode is on."""
    load = torch.load

    def interrupted(original):
        raise KeyboardInterrupt

    patches = patch.Patch(torch, "save", interrupted)
    monkeypatch.setattr(install, "PATCHES_FOR_ANY_MODE", [*install.PATCHES_FOR_ANY_MODE, patches])
    with pytest.raises(KeyboardInterrupt):
        fake_mode().__enter__()
    assert torch.load is load
    assert modes.current() is None
    monkeypatch.undo()
    with fake_mode():
        assert is_fake(torch.ones(1))
    assert not is_fake(torch.ones(1))


def test_patches_of_a_context_outlive_an_import_that_reads_torch() -> None:
    """Such an import runs without the patches that they wrap, and these are installed anew."""

    def doubled(original: Any) -> Any:
        return lambda *args: [*original(*args), *original(*args)]

    name, owner = "_group_tensors_by_device_and_dtype", torch._C
    before = getattr(owner, name)
    with fake_mode(), patch.Patched([patch.Patch(owner, name, doubled)]):
        tensors = [[torch.empty(2)], [torch.empty(2)]]
        assert len(getattr(owner, name)(tensors)) == 2
        with as_outside_modes():
            assert getattr(owner, name) is before
        assert len(getattr(owner, name)(tensors)) == 2
    assert getattr(owner, name) is before


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_scripts_are_compiled_in_a_mode(mode: Any) -> None:
    """As modules of transformers 5.0 are, which may be imported there first."""
    with mode():
        script = torch.jit.script(offset_logarithm)
        fake = script(torch.ones(2))
    assert is_fake(fake)
    assert fake.shape == (2,)
    assert torch.equal(script(torch.ones(2)), offset_logarithm(torch.ones(2)))


def offset_logarithm(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 2, torch.log(x), x) + torch.tensor(2.0)

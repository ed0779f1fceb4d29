"""What the behaviour suites share: the description of a tensor, and the oracle built on it.

The oracle is eager PyTorch: a program is run on real tensors and on fakes, and every tensor that
comes out is described the same way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from _pytest.runner import runtestprotocol
from torch.utils import _pytree as pytree

from tests.tiny_tiles import make_tiny
from torchfake import fake_like, fake_mode, is_fake
from torchfake.__main__ import main
from torchfake._cache import cache, rules


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cache",
        choices=("cold", "warm"),
        help="cold: each test begins with an empty cache; warm: each runs twice and counts once, "
        "so that what counts comes from what is remembered",
    )
    parser.addoption(
        "--pieces",
        action="store_true",
        help="deferred tensors are materialized tile by tile on threads, however small",
    )
    parser.addoption(
        "--all-samples",
        action="store_true",
        help="all samples of torch's operator database are recorded, in six dtypes, not a few",
    )


def pytest_configure(config: pytest.Config) -> None:
    rules.CALLS_BEFORE = 1  # so that what is called a few times is called by rules too
    if config.getoption("--pieces"):
        make_tiny(pytest.MonkeyPatch(), tile_elements=1024, num_scratch_bytes=100_000)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("--cache") == "cold":
        cache.clear()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if item.config.getoption("--cache") == "warm":
        runtestprotocol(item, nextitem=nextitem, log=False)


def pytest_collection_finish() -> None:
    _freeze()


@pytest.hookimpl(trylast=True)  # after fixtures of the file have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Leave what there is, such as imported modules, out of later collections: traversing it took a
    quarter of the time of the suite.
    """
    gc.collect()
    gc.freeze()


def unknown(*size: int) -> torch.Tensor:
    """A fake of floats whose values are not known, however few they are."""
    return fake_like(torch.empty(size))


class Described(NamedTuple):
    """All that a fake promises to share with the real tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    is_inference: bool


def describe_tensor(tensor: torch.Tensor) -> Described:
    """The description of one tensor, fake or real."""
    return Described(
        tuple(tensor.shape),
        tensor.dtype,
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.device,
        tensor.requires_grad,
        tensor.is_leaf,
        isinstance(tensor, torch.nn.Parameter),
        tensor.is_inference(),
    )


def describe_module(module: torch.nn.Module) -> list[Any]:
    """Names, ties and tensors of a module: parameters with gradients, buffers, training flags."""
    seen: dict[int, str] = {}
    rows: list[Any] = [[(name, m.training) for name, m in module.named_modules()]]
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        grad = None if tensor.grad is None else describe_tensor(tensor.grad)
        rows.append((name, seen.setdefault(id(tensor), name), describe_tensor(tensor), grad))
    return rows


def describe(result: Any) -> list[Any]:
    """What comes out of a program: tensors and modules described, other leaves by their type."""
    return [_describe_leaf(leaf) for leaf in pytree.tree_leaves(result)]


def _describe_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return describe_tensor(leaf)
    if isinstance(leaf, torch.nn.Module):
        return describe_module(leaf)
    if isinstance(leaf, (str, int, bool, torch.dtype, torch.device, torch.Size, type(None))):
        return leaf
    return type(leaf)


def all_fake(result: Any) -> bool:
    """Whether every tensor of `result` is fake."""
    leaves = pytree.tree_leaves(result)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for module in (leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)):
        tensors += [*module.parameters(), *module.buffers()]
    return all(is_fake(tensor) for tensor in tensors)


def assert_outlives(build: Callable[[], Any], use: Callable[..., Any]) -> None:
    """``use(*build())`` describes alike for real tensors and for fakes whose mode has ended."""
    assert all_fake(assert_same_outside(build, use))


def assert_same_outside(build: Callable[[], Any], use: Callable[..., Any]) -> Any:
    """The same of a program that also makes real tensors, such as an optimizer's step counts."""
    torch.manual_seed(0)
    expected = describe(use(*build()))
    with fake_mode():
        made = build()
    result = use(*made)
    assert describe(result) == expected
    return result


def refused_as_in_eager(
    call: Callable[[], Any], mode: Callable[[], Any], kind: type[Exception]
) -> Exception:
    """The error of a call in a mode, which has the text of the error in eager mode."""
    with pytest.raises(kind) as expected:
        call()
    with mode(), pytest.raises(kind) as found:
        call()
    assert str(found.value) == str(expected.value)
    return found.value


def assert_inside(program: Callable[[], Any]) -> None:
    """``program()`` describes alike in eager and inside a mode."""
    torch.manual_seed(0)
    expected = describe(program())
    with fake_mode():
        result = program()
    assert all_fake(result)
    assert describe(result) == expected


@contextmanager
def generators_stand_still() -> Iterator[None]:
    """The global CPU generator leaves as it came, bit for bit."""
    before = torch.default_generator.get_state()
    yield
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.fixture(autouse=True)
def _torch_is_left_alone() -> Iterator[None]:
    """No test may leave a mode, a default device or a grad mode on."""
    yield
    assert torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str, str]]:
    """Run the command line in this process: exit code, stdout, stderr. As in a process of its own,
    no notebook is run, whatever an earlier test has imported.
    """
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["torchfake", *arguments])
        try:
            code: Any = main()
        except SystemExit as done:
            code = done.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return run

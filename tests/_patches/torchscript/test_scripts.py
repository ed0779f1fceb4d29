"""TorchScript in a mode: eager's values, and nothing of the mode in what scripts keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor
from torchfake._torch.compiler import scripts
from torchfake.errors import UnknownValueError, UnsupportedOpError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    import torch.jit._fuser

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")

SOURCE = """
def made(x):
    return x + torch.arange(4)

def loop(x):
    h = x
    for i in range(4):
        h = torch.tanh(h @ torch.eye(4)) * torch.sigmoid(h) + x * torch.arange(4)
    return h

def literal(x):
    values = torch.tensor([[1., 2., 3., 4.], [5., 6., 7., 8.]])
    values[0] = values[1] * 2
    return x * values + torch.as_tensor([1, 2, 3, 4]) + torch.tensor(0.5)

def only_literal(x):
    return torch.tensor([1, 2, 3, 4])

def scaled(x):
    return x * torch.arange(4)

def forked(x):
    first = torch.jit.fork(made, x)
    second = torch.jit.fork(scaled, x)
    return torch.jit.wait(first) + torch.jit.wait(second)

def nested(x):
    return torch.jit.wait(torch.jit.fork(forked, x)) * torch.full([4], 2.)

def branches(x):
    y = torch.zeros(4)
    while int(y.shape[0]) < 8:
        y = torch.cat([y, torch.ones(4)])
    if x.shape[0] == 4:
        return x + y[:4] + torch.linspace(0., 1., 4)
    else:
        return x
"""
FUNCTIONS = ("made", "loop", "literal", "only_literal", "forked", "nested", "branches")
MODES = [fake_mode, deferred_mode]
Run = Callable[[], list[Any]]


@torch.jit.ignore
def python(x: torch.Tensor) -> torch.Tensor:
    return x + torch.full((4,), 2.0)


python.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}  # scripts read no strings


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("buffer", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.buffer + torch.arange(4)


class Ignoring(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return python(self.linear(x)) + torch.arange(4)


def layer(cls: type[nn.Module] = Layer) -> nn.Module:
    torch.manual_seed(0)
    return type(cls.__name__, (cls,), {})()  # modules of one class share their methods


def traced() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensor becomes a constant
        return torch.jit.trace(lambda x: x * torch.arange(4) + torch.tensor([1.0, 2, 3, 4]), ones())


def ones() -> torch.Tensor:
    return torch.ones(4)


MAKERS: dict[str, Callable[[], Any]] = {
    **{n: lambda n=n: getattr(torch.jit.CompilationUnit(SOURCE), n) for n in FUNCTIONS},
    "module": lambda: torch.jit.script(layer()),
    "ignoring": lambda: torch.jit.script(layer(Ignoring)),
    "traced": traced,
    "traced_module": lambda: torch.jit.trace(layer(), torch.ones(2, 4)),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(layer().eval())),
    "for_inference": lambda: torch.jit.optimize_for_inference(torch.jit.script(layer().eval())),
}
"""Scripts, each made anew: two of one kind share nothing."""


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return MAKERS[request.param]  # type: ignore[no-any-return]


def run(script: Any) -> list[Any]:
    """Values, gradients, and the graph that was run, of a forward and a backward pass."""
    torch.manual_seed(1)
    x = torch.randn(2, 4, requires_grad=True)
    y = script(x)
    if not y.requires_grad:
        return [y]
    weights = list(script.parameters()) if isinstance(script, nn.Module) else []
    return [y.detach(), *torch.autograd.grad(y.sum(), [x, *weights])]


def graph() -> list[str]:
    """What the latest script has executed, without names of values and places in files."""
    lines = str(torch._C._last_executed_optimized_graph()).splitlines()
    return sorted(line.partition(" = ")[2].partition(" # ")[0].partition("(")[0] for line in lines)


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for ours, eager in zip(found, expected, strict=True):
        assert type(ours) is type(eager)
        assert ours.stride() == eager.stride()
        assert ours.dtype == eager.dtype
        assert torch.equal(ours, eager)


def in_mode(script: Any, mode: Callable[[], AbstractContextManager[Any]]) -> list[Any]:
    with mode():
        found = run(script)
    assert scripts.optimizes()
    return found


@pytest.mark.parametrize("mode", MODES)
def test_the_first_runs_in_a_mode_are_as_the_first_in_eager(make: Any, mode: Any) -> None:
    expected = run(make())
    script = make()
    for _ in range(3):
        found = in_mode(script, mode)
        assert all(map(is_fake, found))
        assert [each.stride() for each in found] == [each.stride() for each in expected]
        if mode is deferred_mode:
            assert_equal(list(map(materialize_tensor, found)), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_before", [0, 1, 2, 4])
def test_outside_a_script_is_as_if_there_had_been_no_mode(
    make: Any, mode: Any, num_before: int
) -> None:
    script, expected = make(), make()
    for number in range(num_before + 4):
        if number == num_before:
            for _ in range(3):
                in_mode(script, mode)
        ours, our_graph = run(script), graph()
        eager, eagers_graph = run(expected), graph()
        assert_equal(ours, eager)
        assert our_graph == eagers_graph


def test_a_run_with_fakes_outside_of_modes_leaves_no_profile(make: Any) -> None:
    script, expected = make(), make()
    fake = fake_like(torch.ones(2, 4))
    script(fake)
    script(fake)
    for _ in range(4):
        ours, our_graph = run(script), graph()
        eager, eagers_graph = run(expected), graph()
        assert_equal(ours, eager)
        assert our_graph == eagers_graph


def test_a_fake_module_leaves_no_profile_for_real_ones() -> None:
    first = layer()
    with fake_mode():
        fake = torch.jit.script(fake_like(first))
    expected, real = torch.jit.script(layer()), torch.jit.script(first)
    for _ in range(3):
        fake(ones())  # its methods are those of the real ones
    assert isinstance(real(ones()), torch.Tensor)
    for _ in range(3):
        assert_equal(run(real), run(expected))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compile_", [torch.jit.freeze, torch.jit.optimize_for_inference])
def test_what_is_frozen_in_a_mode_keeps_no_fake(mode: Any, compile_: Any) -> None:
    module = torch.jit.script(layer().eval())
    with mode():
        frozen = compile_(module)
    assert_equal(run(frozen), run(compile_(module)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


CALLING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 6, 6)),
    "norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (2, 4)),
    "lstm": (Recurrent, (3, 2, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (3, 2, 8)),
}
"""Layers whose methods call others, which are inlined when they are frozen."""


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("compile_", [torch.jit.freeze, torch.jit.optimize_for_inference])
def test_layers_whose_methods_call_others_are_frozen(name: str, compile_: Any) -> None:
    make, size = CALLING[name]

    def program() -> torch.Tensor:
        torch.manual_seed(0)
        compiled = compile_(torch.jit.script(make().eval()))
        return compiled(torch.randn(size)).detach()  # type: ignore[no-any-return]

    expected, scripted, x = program(), torch.jit.script(make().eval()), torch.randn(size)
    with fake_mode():
        assert program().stride() == expected.stride()
        frozen = compile_(scripted)
    with deferred_mode():
        deferred = program()
    assert torch.equal(materialize_tensor(deferred), expected)
    assert torch.equal(frozen(x), compile_(scripted)(x))


def test_what_a_script_in_a_mode_raises_is_an_error_of_ours() -> None:
    convolution = torch.jit.script(nn.Conv2d(3, 4, 3).eval())
    script = torch.jit.CompilationUnit("def read(x):\n    return int(x.sum())\n").read
    with fake_mode():
        with pytest.raises(UnsupportedOpError, match="to_mkldnn"):
            torch.jit.optimize_for_inference(convolution)(torch.ones(1, 3, 6, 6))
        with pytest.raises(UnknownValueError, match="not known"):
            script(torch.randn(100))
        with pytest.raises(RuntimeError, match="TorchScript interpreter"):
            script(None)


def constants() -> Iterator[Any]:
    for node in torch._C._last_executed_optimized_graph().findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")


@pytest.mark.parametrize("mode", MODES)
def test_no_constant_is_a_fake(make: Any, mode: Any) -> None:
    script = make()
    in_mode(script, mode)
    run(script)
    assert not any(is_fake(constant) for constant in constants())


def test_scripts_are_optimized_again_where_they_were() -> None:
    with fake_mode():
        assert not scripts.optimizes()
        with torch.jit.optimized_execution(True), fake_mode():
            assert not scripts.optimizes()
    assert scripts.optimizes()
    with torch.jit.optimized_execution(False):
        with fake_mode():
            pass
        assert not scripts.optimizes()


def test_literals_that_a_script_fills_are_known() -> None:
    with fake_mode():
        found = MAKERS["only_literal"]()(ones())
        assert found.tolist() == [1, 2, 3, 4]
        assert MAKERS["literal"]()(ones()).tolist() == MAKERS["literal"]()(ones()).tolist()
    expected = MAKERS["literal"]()(ones())
    with fake_mode():
        assert MAKERS["literal"]()(ones()).tolist() == expected.tolist()

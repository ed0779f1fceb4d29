"""``fx.make_fx``: the oracle is what torch's ``make_fx`` traces of the real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from tests._tracing.conftest import (
    CPU,
    IGNORED_WARNINGS,
    META,
    assert_same_bits,
    flat,
    operators,
    state_of,
    tensors_on,
)
from tests._tracing.models import COMPOSITE, MODELS, OWN, deferred, eager, model, on_fake_cuda
from torchfake import (
    deferred_init,
    fake_like,
    fake_mode,
    fx,
    graph,
    is_deferred,
    materialize_module,
)
from torchfake.errors import TraceError

pytestmark = IGNORED_WARNINGS


@pytest.mark.parametrize("name", MODELS)
def test_make_fx_of_a_deferred_model(name: str) -> None:
    """The nodes are torch's; the materialized graph computes what eager computes."""
    _, inputs = model(name)
    expected = proxy_tensor.make_fx(eager(name))(*inputs)
    module = deferred(name)
    before = state_of(module)
    traced = fx.make_fx(module, *inputs)
    if name not in COMPOSITE:
        assert operators(traced) == operators(expected)
    assert state_of(module) == before
    own = {id(t) for t in [*module.parameters(), *module.buffers()]}
    assert {id(p) for p in traced.parameters()} <= own
    for path, parameter in traced.named_parameters():
        assert module.get_parameter(path) is parameter
    materialize_module(module)
    materialize_module(traced)
    result, expected_result = traced(*inputs), eager(name)(*inputs)
    if name in COMPOSITE:
        torch.testing.assert_close(result, expected_result)
    else:
        assert_same_bits(expected_result, result)


@pytest.mark.parametrize("name", [*OWN, "bert", "mixtral"])
def test_make_fx_on_fake_cuda(name: str) -> None:
    """Kernels are CUDA's; shapes are eager's, and all devices are those that fakes report."""
    module, inputs = on_fake_cuda(name)
    before = state_of(module)
    traced = fx.make_fx(module, *inputs)
    assert state_of(module) == before
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    results = [n.meta["val"] for n in output.all_input_nodes]
    expected = {(t.shape, t.dtype) for t in flat(eager(name)(*model(name)[1]))}
    assert {(t.shape, t.dtype) for t in results} == expected
    assert {t.device.type for t in results} == {"cuda"}
    for node in traced.graph.nodes:
        devices = [a for a in pytree.tree_leaves((node.args, node.kwargs)) if is_device(a)]
        assert META.type not in {device.type for device in devices}
    assert {t.device for t in tensors_on(traced)} <= {torch.device("cuda", 0), CPU}


def is_device(value: Any) -> bool:
    return isinstance(value, torch.device)


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_make_fx_of_real_and_fake_modules(kind: str) -> None:
    module, (image,) = eager("convolutions"), model("convolutions")[1]
    expected = operators(proxy_tensor.make_fx(eager("convolutions"))(image))
    module = module if kind == "real" else fake_like(module)
    before = state_of(module)
    assert operators(fx.make_fx(module, image)) == expected
    assert operators(fx.make_fx(module, fake_like(image))) == expected
    assert operators(fx.make_fx(module, image=image)) == expected
    assert state_of(module) == before


def test_make_fx_takes_a_decomposition_table() -> None:
    table = torch._decomp.get_decompositions([torch.ops.aten.native_layer_norm])
    words = torch.randn(2, 8)
    expected = proxy_tensor.make_fx(nn.LayerNorm(8), table)(words)
    traced = fx.make_fx(deferred_init(nn.LayerNorm, 8), words, decomposition_table=table)
    assert operators(traced) == operators(expected)


def test_make_fx_of_a_function_that_refers_to_a_model() -> None:
    """A training step: nothing is recorded, and the graph computes eager's gradients."""

    def gradients(module: nn.Module) -> Callable[[torch.Tensor], Any]:
        def function(image: torch.Tensor) -> Any:
            loss = module(image).square().sum()
            return torch.autograd.grad(loss, list(module.parameters()))

        return function

    (image,) = model("convolutions")[1]
    expected = proxy_tensor.make_fx(gradients(eager("convolutions")))(image)
    module, real = deferred("convolutions"), eager("convolutions")
    before = [str(graph(t)) for t in module.state_dict().values()]
    before_real = [t.clone() for t in real.state_dict().values()]
    traced = fx.make_fx(gradients(module), image)
    assert operators(traced) == operators(expected)
    assert operators(fx.make_fx(gradients(real), image)) == operators(expected)
    assert [str(graph(t)) for t in module.state_dict().values()] == before
    assert_same_bits(before_real, list(real.state_dict().values()))
    materialize_module(module)
    assert_same_bits(gradients(eager("convolutions"))(image), traced(image))


def test_make_fx_of_functions() -> None:
    """Only arguments that hold tensors are inputs; a tensor that is given twice is two inputs."""

    def function(*terms: torch.Tensor, times: int = 1, **more: Any) -> torch.Tensor:
        return terms[0] * times + more["last"]["x"]

    ones = torch.ones(3)
    traced = fx.make_fx(function, ones, ones, times=3, last={"x": ones})
    assert torch.equal(traced(ones, ones, {"x": 2 * ones}), 5 * ones)
    assert torch.equal(fx.make_fx(torch.add, ones, 2)(ones), 3 * ones)
    assert not fx.make_fx(lambda: torch.zeros(2).sum()).graph.find_nodes(op="placeholder")


def test_values_of_buffers() -> None:
    """Known for real and fake buffers, as in torch; a deferred buffer is not materialized."""

    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("times", torch.tensor([1, 3]))
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(int(self.times[1])) * self.scale[0]

    x, module = torch.ones(3), deferred_init(Repeats)
    with fake_mode():
        made = Repeats()
    for known in (Repeats(), made):
        assert tensors_on(fx.make_fx(known, x))[-1].shape == (9,)
    with pytest.raises(TraceError, match="UnknownValueError"):
        fx.make_fx(module, x)
    materialize_module(module, buffers_only=True)
    assert operators(fx.make_fx(module, x)) == operators(fx.make_fx(made, x))
    assert is_deferred(module)


def test_make_fx_of_a_method() -> None:
    """Names are the module's, and the module is not changed."""

    class Counting(nn.Linear):
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = 1
            return self(x) * 2

    module, x = deferred_init(Counting, 4, 5), torch.ones(2, 4)
    before = state_of(module)
    traced = fx.make_fx(module.twice, x)
    assert dict(traced.named_parameters()) == dict(module.named_parameters())
    assert state_of(module) == before
    materialize_module(module)
    assert torch.equal(traced(x), module.twice(x))


def test_numbers_that_are_known_on_the_host_are_constants() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(4, device=x.device)[x.dim()].item()
        one, _ = torch.tensor([1, 2], device=x.device).tolist()
        return x.repeat(int(count) + one).tensor_split(torch.tensor([6]))[0]

    x = fake_like(torch.ones(3), device="cuda")
    (output,) = fx.make_fx(function, x).graph.find_nodes(op="output")
    assert output.args[0].meta["val"].shape == (6,)

"""``fx.export``: the oracle is what ``torch.export`` makes of the real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import UncapturedHigherOrderOpError

from tests._tracing.conftest import (
    CPU,
    IGNORED_WARNINGS,
    assert_same_bits,
    exported,
    flat,
    state_of,
    tensors_on,
)
from tests._tracing.models import OWN, deferred, eager, model, on_fake_cuda
from torchfake import fake_like, fake_mode, fx, materialize_module
from torchfake.errors import TraceError

pytestmark = IGNORED_WARNINGS


@pytest.mark.parametrize("name", [*OWN, "bert", "llama", "t5"])
def test_export_of_a_deferred_model(name: str) -> None:
    """The same program as torch's of the real model, node by node, with the module's tensors."""
    _, inputs = model(name)
    expected = torch.export.export(eager(name), inputs)
    module = deferred(name)
    before = state_of(module)
    program = fx.export(module, inputs)
    assert exported(program) == exported(expected)
    assert state_of(module) == before
    for path, tensor in program.state_dict.items():
        assert module.state_dict(keep_vars=True)[path] is tensor
    materialize_module(module)
    assert_same_bits(eager(name)(*inputs), program.module()(*inputs))


@pytest.mark.parametrize("name", [*OWN, "gpt2"])
def test_export_on_fake_cuda(name: str) -> None:
    """Without CUDA: the same shapes as on the CPU, on the devices of the fakes.

    torch 2.12 gives the last states of an LSTM that oneDNN does not run a dim too many: its program
    has the shapes of torch's own for float64, which oneDNN does not run either.
    """
    module, inputs = on_fake_cuda(name)
    before = state_of(module)
    program = fx.export(module, inputs)
    assert state_of(module) == before
    (output,) = program.graph.find_nodes(op="output")
    results = [n.meta["val"] for n in output.all_input_nodes]
    assert {t.device.type for t in results} == {"cuda"}
    if name == "recurrent" and torch.__version__ < "2.13":
        of_torch = torch.export.export(eager(name).double(), model(name)[1]).graph
        nodes = of_torch.find_nodes(op="output")[0].all_input_nodes
        expected = {(n.meta["val"].shape, torch.float32) for n in nodes}
    else:
        expected = {(t.shape, t.dtype) for t in flat(eager(name)(*model(name)[1]))}
    assert {(t.shape, t.dtype) for t in results} == expected
    assert {t.device for t in tensors_on(program)} <= {torch.device("cuda", 0), CPU}
    with fake_mode(fake_cuda=1):
        assert {t.device.type for t in flat(program.module()(*inputs))} == {"cuda"}


@pytest.mark.parametrize(("device", "strict"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_export_with_dynamic_shapes(device: str, strict: bool) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    (image,) = model("convolutions")[1]
    options: Any = {"dynamic_shapes": ({0: batch},), "strict": strict}
    expected = torch.export.export(eager("convolutions"), (image,), **options)
    module = fake_like(eager("convolutions"), device=device)
    program = fx.export(module, (fake_like(image, device=device),), **options)
    shapes = [[str(t.shape) for t in tensors_on(p)] for p in (program, expected)]
    assert shapes[0] == shapes[1]
    assert str(program.range_constraints) == str(expected.range_constraints)
    assert {t.device.type for t in tensors_on(program)} == {device}
    assert program.state_dict["head.weight"] is module.head.weight


def test_export_and_decompose() -> None:
    (image,) = model("convolutions")[1]
    expected = torch.export.export(eager("convolutions"), (image,)).run_decompositions()
    module = fake_like(eager("convolutions"), device="cuda")
    program = fx.export(module, (fake_like(image, device="cuda"),), decompose=True)
    names = [[str(n.target) for n in p.graph.nodes] for p in (program, expected)]
    assert names[0] == names[1]
    assert {t.device.type for t in tensors_on(program)} == {"cuda"}
    assert program.state_dict["head.weight"] is module.head.weight
    assert program.constants["scale"] is module.scale
    table: dict[Any, Any] = {}
    kept = fx.export(module, (fake_like(image, device="cuda"),), decompose=table)
    assert any("conv2d" in str(node.target) for node in kept.graph.nodes)


def test_a_condition_on_fake_cuda_is_exported() -> None:
    class Conditional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = torch.tensor([0.5], device="cuda").cuda().to("cuda")
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x * half,))

    program = fx.export(Conditional(), (fake_like(torch.ones(3), device="cuda"),))
    assert any("cond" in str(node.target) for node in program.graph.nodes)
    with pytest.raises(UncapturedHigherOrderOpError):  # torch.cond is checked as before
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x[0], (torch.ones(3),))


def test_export_restores_the_methods_of_torchs_fakes() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    def attributes() -> list[Any]:
        found = [*vars(FakeTensor).items(), *vars(FakeTensorMode).items()]
        return [(name, id(v)) for name, v in found if callable(v) or isinstance(v, property)]

    before = attributes()
    layer = fake_like(nn.Linear(3, 3), device="cuda")
    fx.export(layer, (fake_like(torch.ones(2, 3), device="cuda"),))
    with pytest.raises(TraceError):
        fx.export(layer, (torch.ones(2, 3),))
    assert attributes() == before

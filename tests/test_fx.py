"""Tracing fake, deferred and meta modules: modes, and errors of all three tracers."""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn

from tests._tracing.conftest import (
    IGNORED_WARNINGS,
    exported,
    no_method_stays_patched,  # noqa: F401  an autouse fixture
    state_of,
    tensors_on,
)
from tests._tracing.models import deferred, eager, model
from torchfake import deferred_init, deferred_mode, fake_like, fake_mode, fx, is_deferred, is_fake
from torchfake.errors import TraceError, UnknownValueError

pytestmark = IGNORED_WARNINGS


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_tracers_work_inside_modes(mode: Any) -> None:
    """Of real modules and of those made in the mode; the trace is not recorded."""
    real = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    with mode(fake_cuda=1):
        made, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), torch.ones(2, 4)
        for module in (made, real):
            before = state_of(module)
            (output,) = fx.make_fx(module, x).graph.find_nodes(op="output")
            assert output.all_input_nodes[0].meta["val"].shape == (2, 8)
            layers = fx.symbolic_trace(module, x).graph.find_nodes(op="call_module")
            assert layers[-1].meta["val"].dim()
            program = fx.export(module, (x,))
            assert tensors_on(program)[-1].shape == (2, 8)
            assert state_of(module) == before
        assert is_fake(torch.ones(1))
        assert is_deferred(torch.ones(1)) == (mode is deferred_mode)


def test_torch_itself_traces_fakes_on_the_cpu() -> None:
    """torch.fx.symbolic_trace and torch.export.export work on deferred modules unaided."""
    module, (image,) = deferred("convolutions").eval(), model("convolutions")[1]
    real = eager("convolutions").eval()
    plain = torch.fx.symbolic_trace(module)
    assert [n.name for n in plain.graph.nodes] == [
        n.name for n in torch.fx.symbolic_trace(real).graph.nodes
    ]
    expected = torch.export.export(real, (image,))
    assert exported(torch.export.export(module, (image,))) == exported(expected)


def test_a_model_larger_than_memory() -> None:
    """15 GB of weights, and none are allocated."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, **heads, use_cache=False)
    with fake_mode(fake_cuda=1), torch.device("cuda"):
        module = transformers.LlamaForCausalLM(config).eval()
        tokens = torch.zeros(1, 2048, dtype=torch.int64)
    program = fx.export(module, (tokens,), {"use_cache": False})
    assert sum(t.nbytes for t in program.parameters()) > 14e9
    logits = program.graph.find_nodes(op="output")[0].all_input_nodes[0].meta["val"]
    assert (*logits.shape, logits.device.type) == (1, 2048, 128256, "cuda")


# Errors.


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


def test_a_branch_on_a_value_cannot_be_traced() -> None:
    x = fake_like(torch.ones(3))
    with pytest.raises(TraceError, match=r"(?s)Branching.*symbolic_trace.*control flow.*make_fx"):
        fx.symbolic_trace(Branching(), x)
    with pytest.raises(TraceError, match=r"(?s)make_fx.*UnknownValueError.*torch\.where") as raised:
        fx.make_fx(Branching(), x)
    assert isinstance(raised.value.__cause__, UnknownValueError)
    with pytest.raises(TraceError, match=r"(?s)torch\.export.*torch\.cond") as raised:
        fx.export(Branching(), (x,))
    assert raised.value.__cause__ is not None


def test_inputs_that_do_not_fit() -> None:
    layer, wrong = deferred_init(nn.Linear, 4, 5), torch.ones(2, 3)
    with pytest.raises(TraceError, match=r"does not run on the inputs: at .*target=0"):
        fx.symbolic_trace(nn.Sequential(layer), wrong)
    with pytest.raises(TraceError, match=r"make_fx: RuntimeError: .*cannot be multiplied"):
        fx.make_fx(layer, wrong)
    with pytest.raises(TraceError, match=r"torch\.export: RuntimeError: .*same reduction dim"):
        fx.export(layer, (wrong,))
    with pytest.raises(TraceError, match="missing a required argument"):
        fx.make_fx(layer)


def test_a_module_that_cannot_be_copied() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = Lock()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    x = torch.ones(3)
    for trace in (fx.symbolic_trace, fx.make_fx, lambda m, x: fx.export(m, (x,))):
        with pytest.raises(TraceError, match="cannot be copied"):
            trace(Locked(), x)


def test_errors_for_other_types() -> None:
    for trace in (fx.symbolic_trace, fx.make_fx):
        with pytest.raises(TypeError, match="a module or a function"):
            trace(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a module, not function"):
        fx.export(lambda x: x)  # type: ignore[arg-type]


def test_autocast_on_fake_cuda_is_refused_by_export_alone() -> None:
    """On a machine with CUDA, export takes it too."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.layer(x)

    module, x = fake_like(Cast(), device="cuda"), fake_like(torch.ones(2, 4), device="cuda")
    assert tensors_on(fx.make_fx(module, x))[-1].dtype == torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises(TraceError, match=r"fake_like\(module, device=\"cpu\"\)"):
            fx.export(module, (x,))
    on_cpu = fx.export(fake_like(module, device="cpu"), (torch.ones(2, 4),))
    assert tensors_on(on_cpu)[-1].dtype == torch.bfloat16

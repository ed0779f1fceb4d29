from __future__ import annotations

import _thread
import queue

import pytest
import torch

from torchfake._torch.compiler import scripts

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")
SOURCE = "def made(x):\n    return x + torch.arange(4)\n"


def made() -> torch._C.ScriptFunction:
    return torch.jit.CompilationUnit(SOURCE).made  # type: ignore[no-any-return]


def test_the_switch_is_one_of_the_thread() -> None:
    others: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with scripts.optimizing(False):
        _thread.start_new_thread(lambda: others.put(scripts.optimizes()), ())
        assert others.get(timeout=10)
        assert not scripts.optimizes()


def test_a_script_run_as_written_keeps_nothing() -> None:
    script = made()
    with scripts.optimizing(False):
        script(torch.ones(4))
        assert not scripts.optimizes()
        assert "aten::arange" in str(torch._C._last_executed_optimized_graph())
    assert scripts.optimizes()
    for _ in range(2):
        script(torch.ones(4))
    assert "aten::arange" not in str(torch._C._last_executed_optimized_graph())


def test_the_switch_is_set() -> None:
    scripts.set_optimizing(False)
    assert not scripts.optimizes()
    scripts.set_optimizing(True)


def test_tensors_of_a_method() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    script = torch.jit.script(module)
    found = scripts.tensors_of(scripts.owner_of(script.forward))
    expected = [*module.parameters(), *module.buffers()]
    assert {each.data_ptr() for each in found} == {each.data_ptr() for each in expected}
    assert scripts.owner_of(made()) is None


def test_names_of_what_scripts_are() -> None:
    assert isinstance(made(), scripts.CLASSES)
    assert "_jit_pass_constant_propagation" in scripts.FOLDING
    assert all(hasattr(scripts.bindings, name) for name in scripts.FOLDING)


def test_names_of_what_reads_and_writes() -> None:
    assert {"import_ir_module", "import_ir_module_from_buffer"} <= {n for _, n in scripts.READING}
    assert {"save", "save_to_buffer"} <= {name for _, name in scripts.WRITING}
    named = [*scripts.READING, *scripts.WRITING, *scripts.TRACING, scripts.CHECK_OF_TRACES]
    assert all(callable(getattr(owner, name)) for owner, name in [*named, *scripts.PRINTING])


def test_what_is_recorded_in_a_trace() -> None:
    seen: list[bool] = []

    def traced_here(x: torch.Tensor) -> torch.Tensor:
        seen.append(scripts.is_tracing())
        with scripts.untraced():
            seen.append(scripts.is_tracing())
            x.sin()
        with scripts.traced():
            return x.cos()

    graph = str(torch.jit.trace(traced_here, torch.ones(2), check_trace=False).graph)
    assert seen == [True, False]
    assert "aten::cos" in graph
    assert "aten::sin" not in graph
    assert not scripts.is_tracing()


def test_constants_of_a_graph() -> None:
    table = torch.arange(3.0)
    script = torch.jit.trace(lambda x: x + table, torch.ones(3), check_trace=False)
    (graph,) = scripts.graphs_of(script)
    ((node, constant),) = scripts.tensor_constants(graph)
    assert torch.equal(constant, table)
    scripts.set_constant(node, table + 1)
    assert torch.equal(next(scripts.tensor_constants(graph))[1], table + 1)
    scripts.map_devices(graph, lambda device: torch.device("meta"))
    assert "device=meta" in str(graph)
    assert "device=cpu" not in str(graph)
    layer = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert len(list(scripts.graphs_of(layer._c))) > 1


def test_settings_of_convolutions() -> None:
    graph = str(torch.jit.trace(torch.nn.Conv1d(2, 2, 1), torch.ones(1, 2, 4)).graph)
    assert "aten::_convolution" in graph
    assert len(scripts.settings_of_convolutions()) == 4


def test_where_a_script_decides_by_a_device() -> None:
    unit = torch.jit.CompilationUnit(
        "def f(x):\n    return x if x.is_cuda else x + 1\n\ndef g(x):\n    return x + 1\n"
    )
    assert scripts.decides_by_device(unit.f, "cuda")
    assert (
        scripts.decides_by_device(unit.f, None) == scripts.decides_by_device(unit.g, "cuda") == ""
    )
    attention = torch.jit.script(torch.nn.MultiheadAttention(4, 2))  # asks for its fast path
    assert not scripts.decides_by_device(attention.forward, "cuda")

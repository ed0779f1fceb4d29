"""What torchfake takes from torch.compile and from operators that take functions."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn.attention import flex_attention as attention_module

from torchfake import fake_mode
from torchfake._dispatch import FakeDispatch
from torchfake._torch import dispatch_keys, dispatcher
from torchfake._torch.compiler import frames, higher_order

Tracer = torch._dynamo.convert_frame.CatchErrorsWrapper


def test_the_callback_of_a_thread_is_swapped_and_put_back() -> None:
    before = frames.swap_frame_callback(None)
    assert frames.swap_frame_callback(before) is None
    assert before is None


def test_the_tracer_is_replaced_where_it_asks() -> None:
    """A torch that moved one of these has torch.compile trace fakes."""
    assert frames.TRACER in sys.modules
    replaced = frames.run_as_they_are(lambda variables: False, lambda: False, None)
    asked = [(owner.__name__, name) for owner, name, _ in replaced]
    assert asked == [
        ("CatchErrorsWrapper", "__call__"),
        ("torch._dynamo.eval_frame", "_callback_from_stance"),
        ("torch._dynamo.compiled_autograd", "_enable"),
    ]
    with fake_mode():
        assert all(hasattr(getattr(owner, name), "__wrapped__") for owner, name, _ in replaced)


def test_all_that_is_skipped_is_in_the_pattern() -> None:
    """A torch that compiled it elsewhere than in one function would trace some of our modules."""
    with fake_mode():
        pass
    rules = torch._dynamo.trace_rules
    assert rules._recompile_re.__module__ == rules.__name__
    own = [path for path in rules.SKIP_DIRS if "torchfake" in path]
    assert len(own) > 50
    assert all(rules.SKIP_DIRS_RE.match(path) for path in own)


def test_imports_are_watched_as_long_as_that_is_on() -> None:
    seen: list[str] = []
    name = "torch.utils.model_zoo"
    sys.modules.pop(name, None)
    watch = frames.ImportWatch(contextlib.nullcontext, [name], lambda: seen.append("there"))
    assert watch.is_imported(frames.TRACER)
    to_undo: list[Callable[[], Any]] = []
    for _ in range(2):
        watch.set_on(to_undo)
        assert sys.meta_path.count(watch) == len(to_undo) == 1
    for _ in range(2):
        to_undo[0]()  # once is enough
    assert watch not in sys.meta_path
    importlib.import_module(name)
    assert not seen
    del sys.modules[name]
    to_undo.clear()
    watch.set_on(to_undo)
    assert not watch.is_imported(name)
    importlib.import_module(name)
    assert watch.is_imported(name)
    assert seen == ["there"]
    to_undo[0]()


def test_modules_are_skipped() -> None:
    """The pattern of all that is skipped has them; each is given to ``frames.skip`` by its name."""
    assert callable(frames.skip)
    program = (
        "import torch._dynamo\n"
        "from torchfake._torch.compiler import frames\n"
        "rules = torch._dynamo.trace_rules\n"
        "frames.skip(['quopri', 'turtle'])\n"
        "assert all(rules.SKIP_DIRS_RE.match(path) for path in rules.SKIP_DIRS[-2:])\n"
        "assert 'quopri' in rules.SKIP_DIRS[-2] and 'turtle' in rules.SKIP_DIRS[-1]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_tracer_asks_each_tensor_for_an_attribute() -> None:
    """By which it decides whether it can look into a subclass."""
    thread = types.SimpleNamespace(traced_frames=0)

    class Tensor(torch.Tensor):
        __tensor_flatten__ = frames.Untraceable(thread)

    tensor = torch.ones(3).as_subclass(Tensor)
    assert not torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)
    assert not hasattr(Tensor, "__tensor_flatten__")
    thread.traced_frames = 1
    with pytest.raises(frames.MetUntraceable):
        torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)


def test_others_find_a_method_under_that_name() -> None:
    thread = types.SimpleNamespace(traced_frames=0)

    class Named:
        __tensor_flatten__ = frames.Untraceable(thread, lambda self: [type(self).__name__])

    assert Named().__tensor_flatten__() == ["Named"]
    thread.traced_frames = 1
    with pytest.raises(frames.MetUntraceable):
        Named().__tensor_flatten__()


def test_operators_that_are_dispatched() -> None:
    names = {op.name() for op in higher_order.dispatched_operators()}
    assert {"cond", "while_loop", "scan", "map_impl", "flex_attention"} <= names
    assert "wrap" not in names  # runs Python at once


class Operator(torch._ops.HigherOrderOperator):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args)


def test_kernels_are_added_and_none_is_replaced() -> None:
    op = Operator("torchfake_test_operator")
    key = dispatch_keys.WRAPPER_KEY.key
    higher_order.add_kernel(op, key, lambda *args: "first")
    higher_order.add_kernel(op, key, lambda *args: "second")
    higher_order.add_class(op, torch.nn.Parameter, lambda *args: "for a class")
    assert op.py_kernels[key]() == "first"
    assert op.python_key_table[torch.nn.Parameter]() == "for a class"
    higher_order.share_kernels(torch.nn.Parameter, torch.nn.Buffer)
    assert op.python_key_table[torch.nn.Buffer]() == "for a class"
    del torch._ops._higher_order_ops["torchfake_test_operator"]


def test_the_kernel_for_tensors_runs_while_a_mode_is_on() -> None:
    kernel: Any = higher_order.kernel_for_tensors(torch.ops.higher_order.cond)
    with dispatcher.in_fake_slot(FakeDispatch()):
        assert kernel(True, lambda: 1, lambda: 2, ()) == 1
    assert higher_order.kernel_for_tensors(torch.ops.higher_order.run_dtensor_rng_op) is None


def test_a_mode_is_put_back_while_it_handles_an_operator() -> None:
    mode = FakeDispatch()
    with higher_order.mode_put_back(mode):
        assert dispatcher.current_fake_mode() is mode
        with higher_order.mode_put_back(mode):
            pass
        assert dispatcher.current_fake_mode() is mode
    assert dispatcher.current_fake_mode() is None
    with higher_order.mode_put_back(None):
        assert dispatcher.current_fake_mode() is None


def test_below_autograd() -> None:
    x = torch.ones(3, requires_grad=True)
    with higher_order.below(dispatch_keys.WRAPPER_KEY.keys):
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_numbers_in_tensors_are_indices() -> None:
    table, index = torch.arange(3), torch.tensor(1)
    with higher_order.indexing_by_numbers_in_tensors():
        assert table[index] == 1


def test_attention_and_its_warning(recwarn: Any) -> None:
    """It is found by its name, and by that of the variable with the query."""
    assert higher_order.flex_attention.name() == "flex_attention"
    assert higher_order.flex_attention_backward.name() == "flex_attention_backward"
    assert attention_module.__name__ == higher_order.FLEX_ATTENTION_MODULE
    owner, name, replace = higher_order.no_warning_of_unfused_attention(lambda q: q == "fake")
    assert owner is attention_module
    warn_once = replace(getattr(owner, name))
    try:
        query = "fake"
        warn_once("flex_attention_performance", query)
        assert not recwarn.list
        warn_once("test_of_another_warning", "message")
        assert len(recwarn.list) == 1
    finally:
        attention_module._WARNINGS_SHOWN.discard("test_of_another_warning")


def test_operands_of_cond_in_containers() -> None:
    """Flattened where that is asked for; with real tensors, torch's own operator refuses them."""
    cond = torch.ops.higher_order.cond
    owner, name, replace = higher_order.trees_in_cond(lambda args: True)
    assert (owner, name) == (type(cond), "__call__")
    seen: list[Any] = []
    x = torch.ones(2)
    replace(lambda *args: seen.append(args))(cond, True, lambda d: d["a"], torch.cos, ({"a": x},))
    _, _, on_leaves, _, leaves = seen[0]
    assert on_leaves(*leaves) is x
    assert cond(True, torch.sin, torch.cos, (x,)).equal(x.sin())
    with pytest.raises(Exception, match=r"Tensor|tensor"):
        cond(True, lambda d: d["a"], lambda d: d["a"], ({"a": x},))


def test_transforms_of_an_operator() -> None:
    """A rule for some arguments; others find what torch has, or the lack of it."""
    op = types.SimpleNamespace(functorch_table={})
    higher_order.add_transforms(
        op, lambda args: args == ("exempt",), lambda name, original, *args: (name, original)
    )
    key = torch._C._functorch.TransformType.Vmap
    assert op.functorch_table[key](None, "exempt") == ("Vmap", None)
    with pytest.raises(KeyError):
        op.functorch_table[key](None, "other")
    before = dict(op.functorch_table)
    higher_order.add_transforms(op, lambda args: True, lambda *args: None)
    assert op.functorch_table == before  # once is enough


def test_the_error_of_functions_that_cannot_be_traced() -> None:
    """The class that torch raises for an operator whose function gives back its input. In a process
    of its own: torch counts more references to tensors afterwards.
    """
    program = (
        "import torch\n"
        "from torchfake._torch.compiler import higher_order\n"
        "ours = higher_order.uncaptured_error('a reason')\n"
        "assert str(ours).startswith('a reason') and isinstance(ours, RuntimeError)\n"
        "try:\n"
        "    torch.cond(torch.tensor(True), lambda x: x, lambda x: x, (torch.ones(2),))\n"
        "except type(ours):\n"
        "    print('raised')\n"
    )
    assert isinstance(higher_order.uncaptured_error("a reason"), RuntimeError)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "raised\n", ran.stderr


def test_what_is_compiled_as_it_is_imported_is_imported_in_a_mode() -> None:
    """torch.distributed.optim compiles functions by torch.jit, which reads those of torch."""
    program = (
        "import warnings, torchfake\n"
        "with torchfake.fake_mode(), warnings.catch_warnings():\n"
        "    warnings.simplefilter('ignore')\n"
        "    from torch.distributed.optim import ZeroRedundancyOptimizer\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

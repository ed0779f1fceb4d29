"""Dispatch keys, dispatch modes, and contexts without interception."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchfake import FakeTensor, deferred_mode, fake_mode
from torchfake._dispatch import FactoryWatch, FakeDispatch
from torchfake._torch import dispatch_keys, dispatcher
from torchfake._torch.autograd import is_transformed

aten = torch.ops.aten


def test_the_recording_key_is_dispatched_to_while_operations_are_recorded() -> None:
    key, seen = dispatch_keys.RECORDING_KEY, []

    def kernel(redispatch: object, *args: object) -> object:
        seen.append(args)
        return redispatch(*args)  # type: ignore[operator]

    key.register(aten.heaviside.default, kernel)
    real = torch.tensor(0.0), torch.tensor(4.0)
    with deferred_mode():
        deferred = torch.heaviside(*real)
        with dispatcher.no_interception():
            torch.heaviside(*real)
        with fake_mode():
            torch.heaviside(*real)
        assert len(seen) == 1
        torch.heaviside(deferred, deferred)
        assert key.is_included()
    assert not key.is_included()
    assert len(seen) == 2
    torch.heaviside(deferred, deferred)
    assert len(seen) == 3
    torch.heaviside(*real)
    assert len(seen) == 3


def test_a_recorded_call_leaves_the_slot_empty() -> None:
    mode, key = FactoryWatch(), dispatch_keys.RECORDING_KEY

    def run(error: type[BaseException] | None) -> bool:
        assert dispatcher.current_fake_mode() is mode
        assert key.is_included()
        if error is not None:
            raise error
        return True

    assert dispatcher.call_recorded(mode, run, None)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.call_recorded(mode, run, KeyboardInterrupt)
    assert dispatcher.current_fake_mode() is None
    assert not key.is_included()
    with key.included():
        assert dispatcher.call_recorded(mode, run, None)
        assert key.is_included()


def test_as_eager_turns_dispatch_modes_off() -> None:
    """C++ takes every tensor for a subclass while one is on: ``svdvals`` has another driver."""
    matrix = torch.randn(5, 5)
    expected = torch.linalg.svdvals(matrix)
    with deferred_mode(), FlopCounterMode(display=False), dispatcher.as_eager():
        assert torch.equal(torch.linalg.svdvals(matrix), expected)
        assert dispatcher.current_fake_mode() is None


def test_any_autocast() -> None:
    assert not dispatcher.any_autocast()
    with torch.autocast("cpu"):
        assert dispatcher.any_autocast()
    with torch.autocast("cpu", enabled=False):
        assert not dispatcher.any_autocast()


def test_autocast_operators() -> None:
    for device_type in ("cpu", "cuda"):
        names = dispatch_keys.autocast_operators(device_type)
        assert {"aten::linear", "aten::bmm"} <= set(names), device_type
    assert AutocastCPUTestLists is not None


def test_no_interception() -> None:
    with fake_mode(), torch.device("meta"), torch.autocast("cpu"), dispatcher.no_interception():
        made = torch.ones(2, 2) @ torch.ones(2, 2)
    assert made.tolist() == [[2.0, 2.0]] * 2
    assert made.dtype == torch.float32


def test_whether_functions_of_tensors_are_called() -> None:
    assert dispatcher.calls_torch_functions()
    with dispatcher.no_interception():
        assert not dispatcher.calls_torch_functions()


def test_as_eager() -> None:
    """Real tensors are made although a mode is on, and no graph is recorded."""
    weight = torch.ones(3, requires_grad=True)
    with fake_mode(), torch.inference_mode(), dispatcher.as_eager():
        double = weight * 2
    assert not isinstance(double, FakeTensor)
    assert not double.requires_grad
    assert not double.is_inference()


def test_in_fake_slot() -> None:
    assert dispatcher.current_fake_mode() is None
    mode = FakeDispatch()
    assert mode._mode_key == dispatcher.FAKE_SLOT
    with dispatcher.in_fake_slot(mode):
        assert dispatcher.current_fake_mode() is mode
        with dispatcher.in_fake_slot(None):
            assert dispatcher.current_fake_mode() is None
        assert dispatcher.current_fake_mode() is mode
        dispatcher.set_fake_mode(mode)
        assert dispatcher.current_fake_mode() is mode
    assert dispatcher.current_fake_mode() is None


def test_set_only_lift_cpu() -> None:
    assert dispatcher.only_lift_cpu() is False
    dispatcher.set_only_lift_cpu(True)
    assert dispatcher.only_lift_cpu() is True
    dispatcher.set_only_lift_cpu(False)
    assert dispatcher.only_lift_cpu() is False


def test_views_are_noted_while_an_operation_is_dispatched() -> None:
    bases = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            bases.append(args[0].view(2, 3)._base)
            with dispatcher.view_bases_recorded(True):
                bases.append(args[0].view(2, 3)._base)
            return func(*args, **(kwargs or {}))

    six = torch.zeros(6)
    with Watch():
        torch.neg(six)
    assert bases[0] is None
    assert bases[1] is six


def test_views_can_be_made_without_a_base() -> None:
    six = torch.zeros(6)
    with dispatcher.views_without_bases():
        assert six.view(2, 3)._base is None
    assert six.view(2, 3)._base is six


@pytest.mark.parametrize("device_type", ["cpu", "cuda", "mps", "xpu", "hpu", "mtia"])
def test_autocast_of_any_type(device_type: str) -> None:
    """Those are named here that torch's own function forgets, and no others."""
    assert not dispatcher.any_autocast_of_all_types()
    torch.set_autocast_enabled(device_type, True)
    try:
        assert dispatcher.any_autocast_of_all_types()
        is_forgotten = not torch._C._is_any_autocast_enabled()
    finally:
        torch.set_autocast_enabled(device_type, False)
    assert is_forgotten is (device_type in dispatcher.FORGOTTEN_AUTOCASTS)


def test_tangents_are_expected_where_they_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[str] = []
    monkeypatch.setattr(dispatcher, "before_tangents", [lambda: expected.append("called")])
    with deferred_mode():
        torch.ones(2)
    assert len(dispatcher.before_tangents) == 1
    assert not expected
    with forward_ad.dual_level(), deferred_mode():
        pass
    assert expected
    expected.clear()
    dispatcher.expect_tangents()
    assert expected == ["called"]


def test_a_rule_is_called_in_the_place_of_torch_dispatch() -> None:
    """For its operator and class alone; a second exchanges the first."""
    op, seen = aten.sinh.default, []

    def rule(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        seen.append((type(mode), func, args, kwargs))
        return args[0]

    dispatcher.set_rule(op, FakeDispatch, lambda *_: None)
    dispatcher.set_rule(op, FakeDispatch, rule)
    held = dispatcher._rules_of("aten::sinh")
    try:
        assert held.find(FakeDispatch) is rule
        assert held.find(FactoryWatch) is type(held).find(held, FactoryWatch) is None
        with fake_mode():
            x = torch.empty(3)
            assert x.sinh() is x
            assert x.cosh() is not x
        with deferred_mode():
            y = torch.empty(3)
            assert y.sinh() is not y
    finally:
        dispatcher.remove_rule("aten::sinh", FakeDispatch)
    assert set(vars(held)) == {"_data", "qualname"}
    assert held.find(FakeDispatch) is None
    assert seen == [(FakeDispatch, op, (x,), {})]
    with fake_mode():
        assert x.sinh() is not x


class _Noting(TorchDispatchMode):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen.append(func)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_are_seen_and_hidden_from() -> None:
    seen: list[Any] = []
    with fake_mode():
        assert not dispatcher.is_seen_by_modes()
        with _Noting(seen):
            assert dispatcher.is_seen_by_modes()
            with dispatcher.hidden_from_modes():
                torch.ones(2)
            assert not seen
        with BaseTorchFunctionMode():
            assert dispatcher.is_seen_by_modes()


def test_with_parts_seen_by() -> None:
    before = dispatcher.current_fake_mode()
    mode = FakeDispatch()
    with dispatcher.with_parts_seen_by(mode):
        assert dispatcher.current_fake_mode() is mode
    assert dispatcher.current_fake_mode() is before


def test_a_mode_of_the_slot_is_none_that_a_user_has_entered() -> None:
    assert dispatcher.SlotMode.is_infra_mode()
    assert not dispatcher.SlotMode._should_skip_dynamo()
    assert issubclass(FakeDispatch, dispatcher.SlotMode)


def test_the_slot_is_put_back() -> None:
    before = dispatcher.slot_state()
    mode = FakeDispatch()
    with dispatcher.in_fake_slot(mode):
        state = dispatcher.slot_state()
        with dispatcher.in_fake_slot(None):
            dispatcher.put_back(state)
            assert dispatcher.current_fake_mode() is mode
    assert dispatcher.slot_state() == before


SEEN = """
class Seen(TorchDispatchMode):
    _should_skip_dynamo = classmethod(lambda cls: False)  # else there is a frame in between

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add.Tensor:
            called.append(dispatcher.is_called_by_engine())
        return func(*args, **(kwargs or {}))
"""


def test_the_engine_is_told_from_hooks() -> None:
    called: list[bool] = []
    namespace: dict[str, Any] = {"__name__": "torchfake.seen", "called": called, "torch": torch}
    namespace |= {"dispatcher": dispatcher, "TorchDispatchMode": TorchDispatchMode}
    exec(SEEN, namespace)
    x = torch.ones(2, requires_grad=True)
    y = (x * 2) + (x * 3)
    x.register_hook(lambda grad: torch.add(grad, 1))
    with namespace["Seen"]():
        y.sum().backward()
        torch.add(torch.ones(2), 1)
    assert called == [True, False, False]
    assert not dispatcher.is_called_by_engine()


def test_own_frames_and_nodes_that_add() -> None:
    assert not dispatcher.is_own_frame(sys._getframe())
    called: list[bool] = []

    class Asking(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.add.Tensor:
                called.append(dispatcher.is_adding_itself())
            return func(*args, **(kwargs or {}))

    x = torch.rand(3, requires_grad=True)
    both = torch.stack(torch.var_mean(x)), (x * 2) + (x * 3)
    with Asking():
        both[0].sum().backward()
        both[1].sum().backward()
    assert called[0] is True
    assert called[-1] is False


def test_a_tensor_that_a_node_has_saved_is_held_by_others() -> None:
    found: list[bool] = []

    class Asking(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found.append(dispatcher.is_held_by_others(args[0]))
            return func(*args, **(kwargs or {}))

    x = torch.rand(3, requires_grad=True)
    history = x.sin()
    with torch.no_grad(), Asking():
        x.neg()
        del history
        x.neg()
    assert found == [True, False]


def test_views_are_resolved() -> None:
    """Inside of ``__torch_dispatch__`` too, conjugate views are conjugated when they are read."""
    matrix = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, 2 + 1j]])
    expected = torch.linalg.pinv(matrix)
    found = []

    class Inside(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for context in (dispatcher.no_interception, dispatcher.as_eager):
                with context():
                    found.append(torch.linalg.pinv(matrix))
            return func(*args, **(kwargs or {}))

    with Inside():
        torch.ones(1)
    assert [torch.equal(each, expected) for each in found] == [True] * 2
    assert torch.equal(torch.linalg.pinv(matrix), expected)


def test_without_transforms() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(dispatcher.transforms_see_operators())
        with dispatcher.without_transforms():
            seen.append(is_transformed(torch.ones(1) + 1))
        seen.append(is_transformed(torch.ones(1) + 1))
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert seen == [True, False, True]
    assert not dispatcher.transforms_see_operators()

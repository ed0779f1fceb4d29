"""What an observer is told, against what the program does; and that the program does not notice."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, materialize_module
from torchfake.observe import (
    Allocation,
    Observer,
    observers,
    observing,
    storage_of,
)
from torchfake.observe.observer import EXISTING, RESIZED, RESULT

aten = torch.ops.aten


class Log(Observer):
    """All that it is told, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.lines.append(str(func))

    def storage_born(self, allocation: Allocation) -> None:
        self.lines.append(f"born {allocation.num_bytes} {allocation.kind}")

    def storage_freed(self, allocation: Allocation) -> None:
        self.lines.append(f"freed {allocation.num_bytes}")

    def module_entered(self, name: str, module: nn.Module) -> None:
        self.lines.append(f"entered {name}")

    def module_left(self, name: str, module: nn.Module) -> None:
        self.lines.append(f"left {name}")


def test_a_result_is_born_before_its_operator_has_been_called() -> None:
    with fake_mode(), observing(Log()) as log:
        x = torch.empty(4)
        x + 1
        x.view(2, 2)
    assert log.lines == [
        *("born 16 result", "aten.empty.memory_format"),
        *("born 16 result", "aten.add.Tensor"),
        "aten.view.default",
        "freed 16",
    ]


def test_frees_come_in_the_order_of_the_deaths_before_the_next_birth() -> None:
    with fake_mode(), observing(Log()) as log:
        x, y = torch.empty(1), torch.empty(2)
        log.lines.clear()
        del y
        del x
        torch.empty(3)
    assert log.lines[:3] == ["freed 8", "freed 4", "born 12 result"]


def test_what_was_there_before_is_of_another_kind() -> None:
    with fake_mode():
        x = torch.empty(4)
        with observing(Log()) as log:
            x.add_(1)
            x.t()
    assert log.lines == ["born 16 existing", "aten.add_.Tensor", "aten.t.default"]


def test_what_was_there_before_may_be_told_first() -> None:
    log = Log()
    with fake_mode():
        x = torch.empty(4)
        storage = storage_of(x)
        assert storage is not None
        assert log.add_existing(storage) is log.add_existing(storage)
        with observing(log):
            x.add_(1)
    assert log.lines == ["born 16 existing", "aten.add_.Tensor"]


def test_a_resize_allocates_and_then_frees() -> None:
    with fake_mode(), observing(Log()) as log:
        x = torch.empty(4)
        x.resize_(8)
    assert log.lines[2:] == [f"born 32 {RESIZED}", "freed 16", "aten.resize_.default"]
    assert [each.num_bytes for each in log.alive()] == [32]


def test_a_storage_that_is_resized_without_an_operator_is_told_of() -> None:
    with fake_mode():
        x, other = torch.empty(4), torch.empty(4)
        with observing(Log()) as log:
            log.add_existing(storage_of(x))  # type: ignore[arg-type]
            x.untyped_storage().resize_(0)
            x.untyped_storage().resize_(16)
            other.untyped_storage().resize_(0)  # of which it was told nothing
    sizes = ["born 16 existing", "born 0 resized", "freed 16", "born 16 resized", "freed 0"]
    assert log.lines == sizes


def test_an_allocation_knows_its_operator_line_device_and_stream() -> None:
    told: list[Allocation] = []
    observer = Observer()
    observer.storage_born = told.append  # type: ignore[method-assign]
    with fake_mode(fake_cuda=2), observing(observer):
        x = torch.empty(4, device="cuda:1")
        with torch.cuda.stream(torch.cuda.Stream("cuda:1")):  # type: ignore[no-untyped-call]
            y = x + 1
    assert [(each.device, each.stream) for each in told] == [
        (torch.device("cuda", 1), 0),
        (torch.device("cuda", 1), 1),
    ]
    assert [each.op for each in told] == [aten.empty.memory_format, aten.add.Tensor]
    assert told[0].location is not None
    assert (
        told[0].location[0].co_name
        == "test_an_allocation_knows_its_operator_line_device_and_stream"
    )
    assert {each.kind for each in told} == {RESULT}
    del y


def test_streams_tell_of_events_and_of_memory_that_they_use() -> None:
    told: list[Any] = []

    class Streams(Observer):
        def storage_used(self, allocation: Allocation, stream: int) -> None:
            told.append((allocation.num_bytes, stream))

        def event_recorded(self, event: Any, stream: int) -> None:
            told.append(("recorded", stream))

        def event_awaited(self, event: Any, stream: int) -> None:
            told.append(("awaited", stream))

    with fake_mode(fake_cuda=True), observing(Streams()):
        x = torch.empty(4, device="cuda")
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        x.record_stream(side)
    assert told == [("recorded", 0), ("awaited", 1), (16, 1)]


def test_the_backward_pass_is_observed_module_by_module() -> None:
    class Names(Observer):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            assert self.modules is not None
            if func is aten.mm.default:
                self.names.append(self.modules.name)

    with fake_mode():
        model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 5, bias=False))
        with observing(Names(), model) as found:
            model(torch.empty(2, 3)).sum().backward()
    assert found.names == ["0", "1", "1", "1", "0"]
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_a_module_that_raises_is_left() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(3, 4))
        with (
            observing(Log(), model) as log,
            pytest.raises(RuntimeError, match="cannot be multiplied"),
        ):
            model(torch.empty(2, 5))
    told = [line for line in log.lines if line.startswith(("entered", "left"))]
    assert told == ["entered ", "entered 0", "left 0", "left "]


def test_observers_are_nested_and_left_in_reverse() -> None:
    outer, inner = Log(), Log()
    with fake_mode():
        with observing(outer):
            x = torch.empty(4)
            with observing(inner):
                assert observers() == (outer, inner)
                x + 1
            assert observers() == (outer,)
            x * 2
        assert observers() == ()
        x / 3
    kept = [line for line in outer.lines if line.startswith("aten")]
    assert kept == ["aten.empty.memory_format", "aten.add.Tensor", "aten.mul.Tensor"]
    assert [line for line in inner.lines if line.startswith("aten")] == ["aten.add.Tensor"]


@pytest.mark.parametrize("method", ["operator_called", "storage_born", "storage_freed"])
def test_what_an_observer_raises_leaves_the_operator(method: str) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError(method)

    observer = Observer()
    with fake_mode():
        with observing(observer):
            x = torch.empty(4)
            del x
            setattr(observer, method, fail)
            with pytest.raises(ZeroDivisionError, match=method):
                torch.empty(5)
            delattr(observer, method)
        assert observers() == ()
        assert torch.empty(6).shape == (6,)


def test_operators_of_an_observer_are_not_observed() -> None:
    class Asks(Log):
        def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            super().operator_called(func, args, kwargs, result + 1)

    with fake_mode(), observing(Asks()) as log:
        torch.empty(4)
    assert [line for line in log.lines if line.startswith("aten")] == ["aten.empty.memory_format"]


def test_an_observer_may_stand_around_an_operator() -> None:
    class Doubles(Observer):
        def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            if func is aten.add.Tensor:
                run(func, types, args, kwargs)
            return run(func, types, args, kwargs)

    with fake_mode(), observing(Log()) as log, observing(Doubles()):
        torch.empty(4) + 1
    assert log.lines.count("aten.add.Tensor") == 2


def test_a_deferred_module_has_its_values_all_the_same() -> None:
    torch.manual_seed(3)
    eager = nn.Linear(3, 4)
    torch.manual_seed(3)
    with deferred_mode(), observing(Log()) as log:
        layer = nn.Linear(3, 4)
    materialize_module(layer)
    assert "aten.uniform_.default" in log.lines
    assert torch.equal(layer.weight, eager.weight)
    assert torch.equal(layer.bias, eager.bias)


def test_values_and_random_numbers_are_as_without() -> None:
    def values() -> list[float]:
        torch.manual_seed(0)
        with fake_mode():
            x = torch.arange(4.0)
            return [*(x * 2 + 1).tolist(), torch.randn(1).shape[0]]

    expected = values()
    with fake_mode(), observing(Observer()):
        assert (torch.arange(4.0) * 2 + 1).tolist() == expected[:4]


def test_other_threads_and_modes_are_not_observed() -> None:
    with fake_mode(), observing(Log()) as log:
        thread = threading.Thread(target=torch.empty, args=(4,))
        thread.start()
        thread.join()
        with fake_mode():
            torch.empty(5)
    assert log.lines == []


def test_a_mode_in_another_thread_may_have_an_observer_of_its_own() -> None:
    logs = Log(), Log()

    def run(log: Log) -> None:
        with observing(log):
            torch.empty(4)

    with fake_mode():
        threads = [threading.Thread(target=run, args=(log,)) for log in logs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [log.lines[0] for log in logs] == ["born 16 result"] * 2


def test_outside_of_modes_there_is_nothing_to_observe() -> None:
    with pytest.raises(RuntimeError, match="enter fake_mode"), observing(Observer()):
        pass
    assert observers() == ()


def test_nothing_is_told_after_the_context() -> None:
    with fake_mode():
        with observing(Log()) as log:
            x = torch.empty(4)
        told = list(log.lines)
        x + 1
        del x
    assert log.lines == told
    log.settle()
    assert log.lines == [*told, "freed 16"]


def test_storages_are_not_told_of_who_does_not_want_to_know() -> None:
    class Operators(Log):
        sees_storages = False

    with fake_mode(), observing(Operators()) as log:
        torch.empty(4) + 1
    assert log.lines == ["aten.empty.memory_format", "aten.add.Tensor"]


def test_what_is_forgotten_is_not_told_of() -> None:
    with fake_mode(), observing(Log()) as log:
        x = torch.empty(4)
        assert [each.num_bytes for each in log.forget()] == [16]
        log.lines.clear()
        del x
        log.settle()
    assert log.lines == []


def test_composites_are_seen_as_parts_in_inference_mode_too() -> None:
    with fake_mode():
        x, w = torch.empty(2, 3), torch.empty(4, 3)
        with observing(Log()) as log, torch.inference_mode():
            nn.functional.linear(x, w)
            made = torch.einsum("ij,kj->ik", x, w)
        log.lines.append("outside")
        with observing(Log()) as outside, torch.no_grad():
            made @ made.t()
    for lines in (log.lines, outside.lines):
        assert any("mm.default" in line for line in lines)
        names = ("linear", "einsum", "matmul")
        assert not any(name in line for line in lines for name in names)


def test_memory_of_a_kind_of_existing_is_told_with_its_size() -> None:
    with fake_mode():
        layer = nn.Linear(8, 16)
        with observing(Log()) as log:
            layer(torch.empty(1, 8))
    assert log.lines.count(f"born 512 {EXISTING}") == 1

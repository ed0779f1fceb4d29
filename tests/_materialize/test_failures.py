"""What happens when something goes wrong: nothing is half done, and the message says what to do."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    deferred_mode,
    dematerialize_module,
    errors,
    fake_like,
    fake_mode,
    graph,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from torchfake._core.schemas import traits_of
from torchfake._recording import record


def test_a_constructor_that_raises() -> None:
    held: list[Any] = []

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            held.append(weakref.ref(self.layer.weight._fake_storage))
            raise OSError("out of ideas")

    torch.manual_seed(0)
    nn.Linear(4, 4)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with pytest.raises(OSError, match="out of ideas"):
        deferred_init(Broken)
    assert not is_fake(torch.ones(1))
    assert torch.equal(torch.get_rng_state(), state)
    gc.collect()
    assert held[0]() is None


def breaking(module: nn.Module, at: str) -> None:
    """Let the parameter named `at` fail once, as if memory had run out."""
    weight = dict(module.named_parameters())[at]
    op = weight._fake_storage.deferred.contents.op  # type: ignore[attr-defined]
    kept, func = op, op.func

    def once(*args: Any, **kwargs: Any) -> Any:
        kept.func = func
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    once.__qualname__ = "uniform_"
    op.func = once


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 6))


@pytest.mark.skipif("config.getoption('--pieces')", reason="in the recorded order")
def test_an_error_in_the_middle() -> None:
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = deferred_init(build)
    breaking(module, "1.bias")
    with pytest.raises(errors.ReplayError, match="can't allocate memory") as caught:
        materialize_module(module)
    assert [name for name, p in module.named_parameters() if is_deferred(p)] == [
        "1.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    expect(
        "\n".join(getattr(caught.value, "__notes__", str(caught.value).split("\n")[-1:])),
        """\
3 of 6 tensors are materialized and stay so; 1.bias, 2.weight, 2.bias are still deferred. Materialize again to continue""",  # noqa: E501
    )
    assert_same(eager, materialize_module(module))


@pytest.mark.skipif("config.getoption('--pieces')", reason="in the recorded order")
def test_an_interrupt_in_the_middle() -> None:
    """Ctrl-C: what is real is real, and another call goes on."""
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = deferred_init(build)
    op = module[2].weight._fake_storage.deferred.contents.op
    func = op.func

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        op.func = func
        raise KeyboardInterrupt

    op.func = interrupted
    with pytest.raises(KeyboardInterrupt):
        materialize_module(module)
    assert not is_fake(torch.ones(1))
    assert is_deferred(module[2])
    assert not is_deferred(module[1])
    assert_same(eager, materialize_module(module))


def test_what_stands_in_the_way_is_found_first() -> None:
    module = deferred_init(build)
    output = module(torch.ones(1, 3))
    with pytest.raises(errors.MaterializeError, match=r"^0.weight cannot be materialized in place"):
        materialize_module(module)
    assert all(is_deferred(p) for p in module.parameters())
    del output
    materialize_module(module)


def message(kind: type[Exception], call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def unkeepable(tensor: torch.Tensor) -> tuple[Any, ...]:
    op = torch.ops.aten.add.Tensor
    return op, traits_of(op), (tensor, object()), {}, lambda *_: None


def test_messages() -> None:
    layer = deferred_init(nn.Linear, 3, 4)
    with fake_mode():
        plain = nn.Linear(3, 4)
    product = deferred_init(nn.Linear, 3, 4).weight * 2
    expect(
        message(errors.NotDeferredError, materialize_module, plain),
        """weight is fake and was not recorded: it was made in fake_mode(), or computed from a fake that was. Make it inside deferred_init() or deferred_mode()""",  # noqa: E501
    )
    expect(
        message(errors.NotDeferredError, materialize_tensor, plain.weight),
        """the tensor is fake and was not recorded: it was made in fake_mode(), or computed from a fake that was. Make it inside deferred_init() or deferred_mode()""",  # noqa: E501
    )
    expect(
        message(ValueError, materialize_module, layer.weight),
        "materialize_module takes a module, not FakeParameter; for a tensor use materialize_tensor",
    )
    expect(
        message(ValueError, materialize_tensor, 3),
        """materialize_tensor takes a tensor, not int; for a module use materialize_module""",
    )
    expect(
        message(ValueError, graph, torch.ones(1)),
        """graph takes a deferred tensor, not Tensor; see deferred_init""",
    )
    expect(
        message(errors.MaterializeError, materialize_tensor, product),
        """the tensor is the result of MulBackward0, whose autograd history cannot be materialized. Materialize what it was computed from and compute it again, or detach() it""",  # noqa: E501
    )
    real = torch.ones(2)
    with deferred_mode():
        copied = torch.zeros(2).copy_(real)
    real.add_(1)
    text = message(errors.ReplayError, materialize_tensor, copied)
    expect(
        re.sub(r" at \S+:\d+ in", " at FILE:LINE in", text),
        """aten.copy_.default at FILE:LINE in test_messages was recorded with a real tensor of shape [2], which was written in place since. The values that it had are lost: pass a clone() of a tensor that is written later, or call materialize_module before it is""",  # noqa: E501
    )
    expect(
        message(errors.RecordError, record.record, *unkeepable(copied)),
        """aten.add.Tensor was given a object, which cannot be kept until the deferred tensor is materialized: do this after materialize_module, or outside of deferred_init""",  # noqa: E501
    )
    materialize_module(layer)
    with torch.no_grad():
        layer.bias.add_(1)
    expect(
        message(errors.ChangedValueError, dematerialize_module, layer),
        """bias was changed since it was materialized: its values cannot be recovered. Save them first (state_dict()), or leave it out with check_fn""",  # noqa: E501
    )
    expect(
        message(errors.ChangedValueError, dematerialize_module, nn.Linear(1, 1)),
        """weight has no record of how it was made: it was never deferred, was given other memory since, or was loaded from real tensors. Leave it out with check_fn""",  # noqa: E501
    )


def test_a_module_instead_of_its_class() -> None:
    for wrong in (nn.Linear(3, 4), "Linear"):
        with pytest.raises(TypeError, match=r"as in deferred_init\(torch.nn.Linear, 3, 4\), not a"):
            deferred_init(wrong)  # type: ignore[type-var]


def test_a_failing_operation_is_named() -> None:
    with deferred_mode():
        bad = torch.ones(3)[torch.arange(1_000_000)[5:6]]  # too large to be looked at before
    text = message(errors.ReplayError, materialize_tensor, bad)
    assert "aten.index.Tensor at " in text
    assert "test_failures.py" in text
    assert "index 5 is out of bounds" in text


def test_what_eager_checks_at_once() -> None:
    """Torch's own check of a factorisation reads a value, and so fails where eager fails."""
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"), deferred_mode():
        torch.linalg.cholesky(torch.zeros(3, 3))


# Threads.


def in_threads(*functions: Any) -> list[BaseException]:
    failures: list[BaseException] = []

    def guarded(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_two_threads_and_two_modules() -> None:
    torch.manual_seed(0)
    eager = [build(), build()]
    torch.manual_seed(0)
    made = [deferred_init(build), deferred_init(build)]
    assert in_threads(*[lambda m=m: materialize_module(m) for m in made]) == []
    for one, other in zip(eager, made, strict=True):
        assert_same(one, other)


def test_two_threads_and_one_module() -> None:
    torch.manual_seed(0)
    eager = nn.ModuleList(nn.Linear(20, 20) for _ in range(40))
    torch.manual_seed(0)
    module = deferred_init(lambda: nn.ModuleList(nn.Linear(20, 20) for _ in range(40)))
    weights = list(module.parameters())
    tasks = [lambda: materialize_module(module) for _ in range(3)]
    assert in_threads(*tasks, lambda: [materialize_tensor(w) for w in reversed(weights)]) == []
    assert all(a is b for a, b in zip(weights, module.parameters(), strict=True))
    assert_same(eager, module)


def test_recording_in_threads() -> None:
    """Each thread has its own mode, and its own generator if it passes one."""
    results: dict[int, torch.Tensor] = {}

    def task(i: int) -> None:
        generator = torch.Generator().manual_seed(i)
        results[i] = deferred_init(torch.rand, 50, generator=generator)

    assert in_threads(*[lambda i=i: task(i) for i in range(6)]) == []
    for i, made in results.items():
        expected = torch.rand(50, generator=torch.Generator().manual_seed(i))
        assert torch.equal(materialize_tensor(made), expected)


def test_gradients_that_cannot_be_exchanged() -> None:
    """They are found before anything has changed: a history, a graph that is alive."""
    with deferred_mode():
        w, c = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        w.grad = c * 2
    with pytest.raises(errors.MaterializeError, match=r"^0\.grad is the result of MulBackward0"):
        materialize_module(nn.ParameterList([w]))
    assert is_deferred(w)
    with deferred_mode():
        w.grad = torch.randn(3).requires_grad_()
        loss = (w.grad * c).sum()
    with pytest.raises(errors.MaterializeError, match=r"^the tensor\.grad cannot be materialized"):
        materialize_tensor(w)
    assert is_deferred(w)
    del loss
    assert not is_deferred(materialize_tensor(w).grad)


def test_whatever_an_operation_raises_names_its_line() -> None:
    """Also where a result does not fit, or no memory is there; then nothing has changed."""
    for raised in (RuntimeError("no kernel"), TypeError("no such"), MemoryError(), KeyError("x")):
        torch.manual_seed(0)
        module = deferred_init(nn.Linear, 3, 4)
        op = module.weight._fake_storage.deferred.contents.op
        kept = op.func

        def failing(*args: Any, raised: Exception = raised, **kwargs: Any) -> Any:
            raise raised

        failing.__qualname__ = "failing"
        op.func = failing
        for materialize in (materialize_module, materialize_tensor):
            with pytest.raises(
                errors.ReplayError, match=r"^failing at .*: in|failing at"
            ) as caught:
                materialize(module if materialize is materialize_module else module.weight)
            assert "test_failures.py" in str(caught.value)
            assert caught.value.__cause__ is raised
            assert all(is_deferred(p) for p in module.parameters())
        op.func = kept
        torch.manual_seed(0)
        assert_same(nn.Linear(3, 4), materialize_module(module))


def test_memory_that_is_not_there() -> None:
    with deferred_mode():
        huge = torch.empty(1 << 50)
    with pytest.raises(errors.ReplayError, match="there is no memory for") as caught:
        materialize_tensor(huge)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert is_deferred(huge)


@pytest.mark.parametrize("way", ["assigned", "step", "of a gradient"])
def test_a_gradient_without_values(way: str) -> None:
    """It is refused by name before anything changes, not dropped."""
    module = deferred_init(nn.Linear, 3, 4)
    if way == "step":
        module(fake_like(torch.ones(2, 3))).sum().backward()
    elif way == "assigned":
        module.weight.grad = fake_like(torch.ones(4, 3))
    else:
        with deferred_mode():
            module.weight.grad = gradient = torch.ones(4, 3)
        gradient.grad = fake_like(torch.ones(4, 3))
    name = r"weight\.grad\.grad" if way == "of a gradient" else r"weight\.grad"
    with pytest.raises(errors.MaterializeError, match=f"^{name} is a plain fake"):
        materialize_module(module, dtype=torch.bfloat16)
    assert is_deferred(module)
    module.zero_grad()
    materialize_module(module)
    assert not is_deferred(module)

"""Optimizers and their operators on lists refuse tensors on several devices, as CUDA does.

``tests/_operators/worker_list_devices`` compares all overloads and optimizers with torch's own CUDA
backend; the cases here are some of those, with the answers that it gives.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests._operators.worker_list_devices import (
    OPTIMIZERS,
    outcome,
    placements,
    step_after_move,
)
from torchfake import deferred_mode, fake_mode

aten = torch.ops.aten


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_state_that_stayed_on_the_cpu(name: str, options: dict[str, bool], mode: None) -> None:
    is_accepted = name == "ASGD" and options == {"foreach": False}  # which reads numbers, only
    expected = "accepted" if is_accepted else "refused"
    assert step_after_move(name, options) in (expected, "no such option")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_state_that_stayed_on_the_cpu_by_default(name: str) -> None:
    with fake_mode(fake_cuda=True):
        assert step_after_move(name, {}) == "refused"


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("fused", [False, True])
def test_state_loaded_from_the_cpu_follows_its_parameters(name: str, fused: bool) -> None:
    with fake_mode(fake_cuda=True):
        options = {"lr": torch.tensor(0.1), "fused": fused} if fused else {"lr": 0.1}
        saved = _stepped("cpu", name, {"lr": 0.1}).state_dict()
        optimizer = _stepped("cuda", name, options)
        optimizer.load_state_dict(saved)
        optimizer.step()


def _stepped(device: str, name: str, options: dict[str, Any]) -> torch.optim.Optimizer:
    layer = torch.nn.Linear(3, 4, device=device)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(layer.parameters(), **options)
    layer(torch.ones(2, 3, device=device)).sum().backward()
    optimizer.step()
    return optimizer


REFUSED = {
    aten._foreach_add.List: {"self": ("cuda", "cuda"), "other": ("cuda", "cpu")},
    aten._foreach_mul_.List: {"self": ("number", "cpu"), "other": ("cuda", "cpu")},
    aten._foreach_add_.Tensor: {"self": ("cuda", "cuda"), "other": ("number", "number")},
    aten._foreach_mul.Tensor: {"self": ("number", "number"), "other": ("cuda", "cuda")},
    aten._foreach_maximum.List: {"self": ("cuda", "cpu"), "other": ("number", "cpu")},
    aten._foreach_lerp.Scalar: {"self": ("cuda", "cuda"), "tensors1": ("cuda", "number")},
    aten._foreach_addcdiv_.Tensor: {
        **dict.fromkeys(("self", "tensor1", "tensor2"), ("cuda", "cuda")),
        "scalars": ("cuda", "cuda"),
    },
}
ACCEPTED = {
    aten._foreach_add.List: ({"self": ("cuda", "number"), "other": ("number", "cuda")}, "cuda"),
    aten._foreach_mul.Tensor: ({"self": ("cuda", "cuda"), "other": ("cpu", "cpu")}, "cuda"),
    aten._foreach_maximum.List: ({"self": ("cpu", "cpu"), "other": ("number", "number")}, "cpu"),
    aten._foreach_pow.ScalarAndTensor: ({"exponent": ("cuda", "cuda")}, "cuda"),
    aten._foreach_copy.default: ({"self": ("cuda", "cuda"), "src": ("cpu", "cpu")}, "cuda"),
    aten._foreach_addcmul.Tensor: (
        {
            **dict.fromkeys(("self", "tensor1"), ("cuda", "cuda")),
            "tensor2": ("number", "cuda"),
            "scalars": ("cpu", "cpu"),
        },
        "cuda",
    ),
}


@pytest.mark.parametrize(("func", "places"), REFUSED.items(), ids=map(str, REFUSED))
def test_refused(func: Any, places: Any, mode: None) -> None:
    assert outcome(func, places)[0] == "refused"


@pytest.mark.parametrize(("func", "case"), ACCEPTED.items(), ids=map(str, ACCEPTED))
def test_each_element_is_compared_with_those_of_its_index(func: Any, case: Any, mode: None) -> None:
    places, device = case
    found, error = outcome(func, places)
    assert [torch.device(d).type for d in found] == [device] * 2, error


ON_CPU = (aten._foreach_addcmul.Tensor, aten._foreach_addcdiv_.Tensor, aten._foreach_lerp.List)


@pytest.mark.parametrize("func", ON_CPU, ids=str)
def test_on_the_cpu_as_in_eager(func: Any) -> None:
    for places in placements(func):
        if not any("cuda" in pair for pair in places.values()):
            with fake_mode():
                found = outcome(func, places)[0]
            assert found == outcome(func, places)[0], places


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: torch.lerp(x, number, 0.5),
        lambda x, number: torch.addcmul(x, number, x),
        lambda x, number: torch.addcdiv(x, x, number),
        lambda x, number: torch.clamp(x, number, number),
        lambda x, number: x.gather(0, number.long()),
        lambda x, number: torch.complex(x, number),
        lambda x, number: torch.isin(x, number),
        lambda x, number: torch.equal(x, number),
    ],
)
def test_numbers_on_the_cpu_that_cuda_refuses(function: Any) -> None:
    with fake_mode(fake_cuda=True), pytest.raises(RuntimeError, match="same device"):
        function(torch.ones(3, device="cuda"), torch.tensor(0.0))


def test_numbers_on_the_cpu_that_cuda_reads(mode: None) -> None:
    x, number = torch.ones(3, device="cuda"), torch.tensor(0.5)
    results = torch.lerp(x, x, number), torch.addcmul(x, x, number), torch.maximum(x, number)
    assert {result.device.type for result in results} == {"cuda"}

"""Functions of torch.nn.init in a mode leave what they leave in eager, called again and again."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import deferred_init, fake_mode, materialize_module
from torchfake._cache import cache

init = nn.init

CALLS: dict[str, Callable[[Any], Any]] = {
    "uniform_": init.uniform_,
    "uniform_ -1 2": lambda t: init.uniform_(t, -1, 2.0),
    "uniform_ 2 1": lambda t: init.uniform_(t, 2.0, 1.0),  # refused
    "normal_": lambda t: init.normal_(t, std=0.02),
    "normal_ -1": lambda t: init.normal_(t, 0.0, -1.0),  # refused
    "constant_ 0": lambda t: init.constant_(t, 0.0),
    "constant_ -0": lambda t: init.constant_(t, -0.0),
    "constant_ 3": lambda t: init.constant_(t, 3),
    "constant_ True": lambda t: init.constant_(t, True),
    "constant_ complex": lambda t: init.constant_(t, 1 + 2j),
    "constant_ nan": lambda t: init.constant_(t, float("nan")),
    "ones_": init.ones_,
    "zeros_": init.zeros_,
    "xavier_uniform_": lambda t: init.xavier_uniform_(t, gain=2.0),
    "xavier_normal_": init.xavier_normal_,
    "kaiming_uniform_": lambda t: init.kaiming_uniform_(t, a=5**0.5),
    "kaiming_uniform_ 1": lambda t: init.kaiming_uniform_(t, a=1),
    "kaiming_uniform_ True": lambda t: init.kaiming_uniform_(t, a=True),  # refused
    "kaiming_normal_": lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
    "kaiming_normal_ mode": lambda t: init.kaiming_normal_(t, mode="fan"),  # type: ignore[arg-type]
    "unhashable": lambda t: init.normal_(t, [1.0]),  # type: ignore[arg-type]
}

TENSORS: dict[str, Callable[[torch.dtype], Any]] = {
    "matrix": lambda dtype: torch.empty(20, 30, dtype=dtype),
    "small": lambda dtype: torch.empty(3, 4, dtype=dtype),
    "vector": lambda dtype: torch.empty(300, dtype=dtype),
    "empty": lambda dtype: torch.empty(0, 3, dtype=dtype),
    "columns": lambda dtype: torch.empty(20, 30, dtype=dtype)[:, 2:20],
    "transposed": lambda dtype: torch.empty(20, 30, dtype=dtype).t(),
    "whole view": lambda dtype: torch.zeros(600, dtype=dtype).view(20, 30),
    "expanded": lambda dtype: torch.empty(1, 30, dtype=dtype).expand(20, 30),
    "channels": lambda dtype: torch.empty(4, 5, 3, 3, dtype=dtype).to(
        memory_format=torch.channels_last
    ),
    "known": lambda dtype: torch.ones(20, 30, dtype=dtype),
}

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64, torch.bool)


def outcome(call: Callable[[Any], Any], tensor: Any) -> list[Any]:
    """What is seen of one call: the error, or whether the tensor is returned; the versions of the
    tensor and its base; the generator's state.
    """
    try:
        result: Any = call(tensor) is tensor
    except Exception as error:
        result = type(error)
    versions = tensor._version, None if tensor._base is None else tensor._base._version
    return [result, versions, tensor.requires_grad, torch.get_rng_state().tolist()]


def made(
    call: Callable[[Any], Any], make: Callable[[], Any], times: int, see: Callable[..., Any]
) -> tuple[list[Any], list[Any]]:
    """So many tensors, and what is seen of a call with each of them."""
    tensors = [make() for _ in range(times)]
    return tensors, [see(call, tensor) for tensor in tensors]


def assert_as_eager(call: Callable[[Any], Any], make: Callable[[], Any], times: int = 4) -> None:
    torch.manual_seed(3)
    real, expected = made(call, make, times, outcome)
    torch.manual_seed(3)
    with fake_mode():
        fakes, found = made(call, make, times, outcome)
        assert found == expected
        for fake, tensor in zip(fakes, real, strict=True):
            if fake._fake_storage.is_known and expected[0][0] is True:
                assert bits(fake) == bits(tensor)


def bits(tensor: Any) -> list[int]:
    return tensor.detach().contiguous().view(torch.uint8).flatten().tolist()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", CALLS)
def test_calls_as_in_eager(name: str) -> None:
    for make, dtype in itertools.product(TENSORS.values(), DTYPES):
        assert_as_eager(CALLS[name], functools.partial(make, dtype))


@pytest.mark.parametrize("name", ["kaiming_uniform_", "normal_", "ones_", "constant_ -0"])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters(name: str, requires_grad: bool) -> None:
    assert_as_eager(CALLS[name], lambda: nn.Parameter(torch.empty(9, 9), requires_grad))
    assert_as_eager(CALLS[name], lambda: torch.ones(9, 9, requires_grad=requires_grad) * 2)


def _fill_with_each(values: tuple[Any, ...], tensor: Any) -> Any:
    for value in values:
        init.constant_(tensor, value)
    return tensor


def test_numbers_that_are_equal_and_not_the_same() -> None:
    for values in itertools.permutations((0.0, -0.0, 0, False)):
        for i in range(1, 5):
            call = functools.partial(_fill_with_each, values[:i])
            assert_as_eager(call, lambda: torch.empty(8, 8))


def test_what_an_initializer_calls_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> list[Any]:
        torch.manual_seed(3)
        weights = [torch.empty(5, 6) for _ in range(3)]
        for weight in weights:
            init.kaiming_uniform_(weight, a=1.0), init.ones_(weight[0])
        return [weight.tolist() for weight in weights]

    def replaced() -> list[Any]:
        with monkeypatch.context() as context:
            context.setattr(init, "calculate_gain", lambda *_: 0.5)
            context.setattr(init, "_no_grad_fill_", lambda tensor, _: tensor.fill_(7))
            return seen()

    eager = [seen(), replaced(), seen()]
    with fake_mode():
        assert [seen(), replaced(), seen()] == eager


@pytest.mark.parametrize(
    "bounds", [(0.0, 0.02, -2.0, 2.0), (0.0, 1.0, -2.0, 2.0), (1.0, 1.0, 2, 3)]
)
def test_truncated_normals_do_the_same_without_the_cache(
    bounds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen() -> Any:
        torch.manual_seed(3)
        with fake_mode() as mode:
            found = []
            for _ in range(4):
                weight = torch.ones(20, 30)
                init.trunc_normal_(weight, *bounds)
                found.append((weight._version, weight._fake_storage.value))  # type: ignore[attr-defined]
            init.trunc_normal_(weight, *bounds)
            return found, str(mode.answers), torch.get_rng_state().tolist()

    monkeypatch.setattr(cache.settings, "checking", False)
    cached, again = seen(), seen()
    monkeypatch.setattr(cache.settings, "enabled", False)
    assert seen() == cached == again


def test_a_warning_is_given_each_time() -> None:
    with fake_mode():
        for _ in range(3):
            with pytest.warns(UserWarning, match="mean is more than 2 std"):
                init.trunc_normal_(torch.empty(20, 30), 0.0, 1.0, 3.0, 4.0)


class Calls(TorchFunctionMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Calls, Operators])
def test_other_modes_see_it(kind: Any) -> None:
    def seen() -> list[str]:
        weight = torch.empty(20, 20)
        init.normal_(weight)
        init.normal_(weight)
        with kind() as mode:
            init.normal_(weight)
            nn.Parameter(weight)
        return mode.seen  # type: ignore[no-any-return]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_profilers_see_it() -> None:
    with fake_mode():
        weight = torch.empty(20, 20)
        init.normal_(weight)
        init.normal_(weight)
        with torch.autograd.profiler.profile() as profile:
            init.normal_(weight)
    assert "aten::normal_" in {event.name for event in profile.function_events or ()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tangents_are_dropped_as_in_eager() -> None:
    def tangent() -> bool:
        with forward_ad.dual_level():
            for _ in range(3):
                init.zeros_(torch.empty(20, 20))
            dual = forward_ad.make_dual(torch.empty(20, 20), torch.ones(20, 20))
            init.zeros_(dual)
            return forward_ad.unpack_dual(dual).tangent is None

    eager = tangent()
    with fake_mode():
        assert tangent() == eager


def test_inference_tensors() -> None:
    def outcomes() -> list[Any]:
        for _ in range(3):
            init.ones_(torch.empty(20, 20))
        with torch.inference_mode():
            made = torch.empty(20, 20)
            init.ones_(made)
            parameter = nn.Parameter(made, requires_grad=False)
        found: list[Any] = [parameter.is_inference()]
        for call in (init.ones_, init.normal_):
            try:
                call(made)
                found.append(made.is_inference())
            except Exception as error:
                found.append(type(error))
        return found

    eager = outcomes()
    with fake_mode():
        assert outcomes() == eager


def test_a_saved_tensor_that_is_initialized_again_is_noticed() -> None:
    with fake_mode():
        weight = nn.Parameter(torch.empty(20, 20))
        for _ in range(3):
            init.ones_(weight)
        loss = (weight * weight).sum()
        init.ones_(weight)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_another_storage_of_the_same_shape() -> None:
    """Only all of a storage is filled: a part leaves what is known of the rest unknown."""
    with fake_mode():
        for _ in range(3):
            init.zeros_(torch.empty(20, 30))
        part = torch.ones(40, 30)[:20]
        init.zeros_(part)
        assert part.tolist() == [[0.0] * 30] * 20
        base = torch.ones(40, 30)
        init.zeros_(base[:20])
        assert base[20:].tolist() == [[1.0] * 30] * 20


def test_generators_that_are_given() -> None:
    def state() -> list[int]:
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            init.normal_(torch.empty(20, 20), generator=generator)
        return generator.get_state().tolist()

    eager = state()
    with fake_mode():
        assert state() == eager


def test_devices_of_their_own() -> None:
    with fake_mode(fake_cuda=True):
        torch.cuda.manual_seed(3)
        states = []
        for _ in range(4):
            init.normal_(torch.empty(20, 20, device="cuda"))
            states.append(torch.cuda.get_rng_state().tolist())
    assert all(a != b for a, b in itertools.pairwise(states))


def test_deferred_modules_in_a_plain_mode_are_recorded() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(20, 30)
        for _ in range(3):
            init.normal_(layer.weight)
        return layer

    torch.manual_seed(3)
    eager = build()
    torch.manual_seed(3)
    layer = deferred_init(nn.Linear, 20, 30)
    with fake_mode():
        for _ in range(4):
            init.normal_(torch.empty(30, 20))
    for _ in range(3):
        init.normal_(layer.weight)
    materialize_module(layer)
    assert torch.equal(layer.weight, eager.weight)  # type: ignore[arg-type]


def test_other_threads_are_in_no_mode() -> None:
    found: list[Any] = []
    with fake_mode():
        thread = threading.Thread(target=lambda: found.append(init.ones_(torch.empty(3))))
        thread._torchfake_plain = True  # type: ignore[attr-defined]
        thread.start()
        thread.join()
    assert len(found) == 1


@pytest.mark.parametrize("data_is", ["plain", "view", "conjugate", "parameter", "written"])
def test_parameters_share_memory_and_version(data_is: str) -> None:
    def seen() -> list[Any]:
        data: Any = torch.empty(6, 8, dtype=torch.complex64)
        data = {"view": data[2:, 1], "conjugate": data.conj(), "parameter": nn.Parameter(data),
                "written": data.mul_(2)}.get(data_is, data)  # fmt: skip
        parameter = nn.Parameter(data)
        found = [parameter._version, parameter.is_leaf, parameter._is_view(), parameter.is_conj()]
        with torch.no_grad():
            data.add_(1)
        same = parameter.untyped_storage()._cdata == data.untyped_storage()._cdata
        geometry = parameter.shape, parameter.stride(), parameter.storage_offset()
        return [
            *found,
            parameter._version,
            same,
            geometry,
            type(parameter) is type(nn.Parameter(data)),
        ]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_parameters_of_integers_are_refused() -> None:
    def refusal() -> str:
        with pytest.raises(RuntimeError) as error:
            nn.Parameter(torch.empty(3, dtype=torch.int64))
        return str(error.value)

    eager = refusal()
    with fake_mode():
        assert refusal() == eager
        assert not nn.Parameter(
            torch.empty(3, dtype=torch.int64), requires_grad=False
        ).requires_grad
        assert (torch.ones(3) + 1).tolist() == [2.0] * 3  # and fakes are dispatched as before

"""torch.empty, zeros and ones give layers in a mode what they give in eager, again and again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from tests._patches.sources.test_initializers import Calls, Operators
from torchfake import (
    deferred_init,
    fake_mode,
    is_deferred,
    is_fake,
)
from torchfake._cache import cache
from torchfake._patches.sources import factories
from torchfake._torch import dispatcher

NAMES = ("empty", "zeros", "ones")
layers = torch.nn.modules.linear
"""Its ``torch`` is what is tested here: that of the modules of layers."""

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "numbers": ((40, 50), {}),
    "tuple": (((40, 50),), {}),
    "list": (([40, 50],), {}),
    "size": ((torch.Size((40, 50)),), {}),
    "no dims": ((), {}),
    "no dims in a tuple": (((),), {}),
    "no elements": ((0, 3), {}),
    "small": ((3,), {}),
    "large": ((600, 700), {}),
    "numpy": ((np.int64(3), 4), {}),
    "dtype": ((40, 50), {"dtype": torch.bfloat16}),
    "integers": ((40, 50), {"dtype": torch.int64}),
    "bool": ((4, 5), {"dtype": torch.bool}),
    "complex": ((4, 5), {"dtype": torch.complex64}),
    "dtype None": ((4, 5), {"dtype": None}),
    "dtype and device None": (((4, 5),), {"device": None, "dtype": None}),
    "device None": ((4, 5), {"device": None}),
    "device": ((4, 5), {"device": "cpu"}),
    "python dtype": ((4, 5), {"dtype": float}),
    "named size": ((), {"size": (4, 5)}),
    "gradient": ((4, 5), {"requires_grad": True}),
    "layout": ((4, 5), {"layout": torch.strided}),
    "a float": ((2.0, 3), {}),  # from here on refused
    "floats": (((2.0, 3.0),), {}),
    "a negative size": ((-1, 2), {}),
    "text": (("ab",), {}),
    "nested": (((2, (3,)),), {}),
    "dtype 0": ((4, 5), {"dtype": 0}),
    "an unknown keyword": ((4, 5), {"dtyp": torch.float64}),
}
"""Equal numbers of other types are among them, each behind the ones that it equals."""


def called(name: str, args: Any, kwargs: Any) -> Any:
    """The metadata of what a call gives, its bytes where they are defined, or its error."""
    try:
        made = getattr(layers.torch, name)(*args, **kwargs)
    except Exception as error:
        return type(error)
    facts = [made.dtype, made.device, made.layout, tuple(made.shape), made.requires_grad]
    facts += [made.is_leaf, made._version, type(made.detach()) is type(made)]
    if made.layout is torch.strided:
        facts += [made.stride(), made.storage_offset(), made.untyped_storage().nbytes()]
        if name != "empty" and 0 < made.numel() < 100:
            facts += [made.tolist()]
    return facts


pytestmark = pytest.mark.usefixtures("nothing_learned")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_calls_as_in_eager(name: str, arguments: str) -> None:
    args, kwargs = ARGUMENTS[arguments]
    expected = called(name, args, kwargs)
    with fake_mode():
        for _ in range(4):
            assert called(name, args, kwargs) == expected


@pytest.mark.parametrize("name", NAMES)
def test_all_calls_in_any_order(name: str) -> None:
    """What one call teaches is not used for another one, which may be equal to it."""
    calls = [*ARGUMENTS.values()]
    expected = [called(name, *call) for call in calls]
    with fake_mode():
        for order in (1, -1, 1):
            assert [called(name, *call) for call in calls[::order]] == expected[::order]


SIZES = [(40, 50), (33, 7), (48, 64), (8, 8), (9, 9), (2, 33), (1, 1), (0, 4), (4, 0, 3), (70,),
         (300, 300), (200, 200), (1000, 1000)]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_other_sizes(name: str, dtype: torch.dtype) -> None:
    def seen() -> list[Any]:
        return [called(name, size, {"dtype": dtype}) for size in (*SIZES, *SIZES[::-1])]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def values_kept(names: tuple[str, ...]) -> list[Any]:
    """What is known of elements, after calls of many sizes."""

    def known(value: Any) -> Any:
        if isinstance(value, torch.UntypedStorage):
            return layers.torch.empty(0, dtype=torch.uint8).set_(value).tolist()
        return type(value), value

    with fake_mode():
        made = [getattr(layers.torch, name)(*size) for size in SIZES * 3 for name in names]
        storages = [tensor._fake_storage for tensor in made]
    return [known(s.known_bytes() if s.is_known else s.value) for s in storages]


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_the_same_is_known_of_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = values_kept((name,))
    monkeypatch.setattr(cache.settings, "enabled", False)
    cache.clear()
    assert values_kept((name,)) == remembered


def test_what_follows_from_other_sizes_is_not_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    with fake_mode():
        for size in SIZES[:3]:
            layers.torch.ones(size)
        monkeypatch.setattr(cache, "run_and_cache", None)
        assert layers.torch.ones(7, 7).tolist() == [[1.0] * 7] * 7
        assert layers.torch.ones(7, 7)._fake_storage.source_location.line  # type: ignore[attr-defined]


def test_the_line_of_user_code() -> None:
    with fake_mode():
        lines = [layers.torch.ones(3, 3)._fake_storage.source_location for _ in range(4)]  # type: ignore[attr-defined]
    code = test_the_line_of_user_code.__code__
    assert {str(line) for line in lines} == {
        f"{code.co_filename}:{code.co_firstlineno + 2} in {lines[0].code.co_name}"
    }


def test_the_default_dtype() -> None:
    with fake_mode():
        for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
            torch.set_default_dtype(dtype)
            try:
                assert {layers.torch.empty(3, 3).dtype for _ in range(3)} == {dtype}
            finally:
                torch.set_default_dtype(torch.float32)


def test_each_has_a_storage_and_a_version_of_its_own() -> None:
    with fake_mode():
        one, *others = (layers.torch.ones(3, 3) for _ in range(4))
        one.add_(1)
        assert [t._version for t in (one, *others)] == [1, 0, 0, 0]
        assert one.tolist() == [[2.0] * 3] * 3
        assert all(t.tolist() == [[1.0] * 3] * 3 for t in others)


@pytest.mark.parametrize("kind", [Calls, Operators])
@pytest.mark.parametrize("name", NAMES)
def test_other_modes_see_it(kind: Any, name: str) -> None:
    def seen() -> list[str]:
        for _ in range(3):
            getattr(layers.torch, name)(20, 20)
        with kind() as mode:
            getattr(layers.torch, name)(20, 20)
        return mode.seen  # type: ignore[no-any-return]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_function_modes_get_the_arguments_of_the_call() -> None:
    seen: list[Any] = []

    class Arguments(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((func, args, kwargs))
            return func(*args, **(kwargs or {}))

    original = torch.empty
    with fake_mode(), Arguments():
        layers.torch.empty(3, 4, dtype=torch.float64)
        layers.torch.empty((3,))
    assert seen == [(original, (3, 4), {"dtype": torch.float64}), (original, ((3,),), {})]


CONTEXTS: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("meta"),
    "torch's fakes": FakeTensorMode,
    "no mode": lambda: dispatcher.in_fake_slot(None),
    "no interception": dispatcher.no_interception,
    "without dispatch": torch._C._DisableTorchDispatch,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_inside_another_context(name: str) -> None:
    """What tensors are made there depends on it, not on the mode alone."""

    def kinds(make: Callable[[], Any]) -> list[Any]:
        made = [make() for _ in range(3)]
        return [(type(t), t.device, t.is_inference(), is_fake(t)) for t in made]

    with fake_mode():
        for _ in range(3):
            layers.torch.empty(3, 4)
        with CONTEXTS[name]():
            found = kinds(lambda: layers.torch.empty(3, 4))
            expected = kinds(lambda: torch.empty(3, 4))
        assert found == expected
        assert is_fake(layers.torch.empty(3, 4))


def test_a_profiler_sees_it() -> None:
    with fake_mode():
        for _ in range(3):
            layers.torch.ones(3, 4)
        with torch.autograd.profiler.profile() as profile:
            layers.torch.ones(3, 4)
    assert "aten::ones" in {event.name for event in profile.function_events or ()}


def test_empty_memory_that_is_filled_is_not_remembered() -> None:
    def made() -> Any:
        return layers.torch.empty(3).tolist()

    with fake_mode():
        for _ in range(3):
            layers.torch.empty(3)
        torch.use_deterministic_algorithms(True)
        try:
            assert all(number != number for number in made())
            assert all(number != number for number in made())
        finally:
            torch.use_deterministic_algorithms(False)
        assert layers.torch.empty(3)._fake_storage.value is None  # type: ignore[attr-defined]


def test_deferred_modes_record_it() -> None:
    with fake_mode():
        for _ in range(3):
            layers.torch.ones(3, 4)
        layer = deferred_init(torch.nn.LayerNorm, 4)
    assert is_deferred(layer.weight)


def test_fake_accelerators() -> None:
    with fake_mode(fake_cuda=True):
        for device, _ in itertools.product((None, "cuda", "cpu"), range(3)):
            assert layers.torch.ones(3, 4, device=device).device.type == (device or "cpu")
        with torch.device("cuda"):
            assert layers.torch.ones(3, 4).device.type == "cuda"


def test_another_thread_makes_its_own() -> None:
    found: list[Any] = []
    with fake_mode():
        layers.torch.ones(3)
        thread = threading.Thread(
            target=lambda: found.extend(layers.torch.ones(3) for _ in range(3))
        )
        thread.start()
        thread.join()
    assert all(is_fake(tensor) for tensor in found)


def test_torch_is_as_before_outside() -> None:
    before = {name: getattr(torch, name) for name in NAMES}
    with fake_mode():
        assert layers.torch.empty is not before["empty"]
        assert layers.torch.empty.__name__ == "empty"
        assert layers.torch.Tensor is torch.Tensor
        assert dir(layers.torch) == dir(torch)
        assert {name: getattr(torch, name) for name in NAMES} == before
    assert {patch.owner.torch for patch in factories.PATCHES} == {torch}
    assert not is_fake(layers.torch.empty(3))


def test_who_replaces_a_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_mode():
        for _ in range(3):
            layers.torch.empty(3, 4)
        monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: (args, kwargs))
        assert layers.torch.empty((3, 4), dtype=None) == (((3, 4),), {"dtype": None})

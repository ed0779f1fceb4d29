"""Lists of fakes as data: known values are read, unknown ones are refused, eager's errors stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchfake import deferred_mode, errors, fake_mode, is_fake, materialize_tensor

PROGRAMS: dict[str, Callable[[], Any]] = {
    "scalars": lambda: torch.tensor([torch.tensor(1.5), torch.tensor(2.5)]),
    "nested": lambda: torch.tensor([[torch.tensor(1), 2], (3, torch.tensor(4.0))]),
    "dtype": lambda: torch.tensor([torch.tensor(1.5)], dtype=torch.int64),
    "elements": lambda: torch.tensor(list(torch.arange(6.0).view(2, 3)[1])),
    "one element each": lambda: torch.tensor([torch.tensor([1]), torch.tensor([2])]),
    "booleans": lambda: torch.tensor([torch.tensor(True), torch.tensor(False)]),
    "complex": lambda: torch.tensor([torch.tensor(1 + 2j), 3.0]),
    "half": lambda: torch.tensor([torch.tensor(0.1, dtype=torch.bfloat16)]),
    "requires_grad": lambda: torch.tensor([torch.tensor(1.0)], requires_grad=True),
    "by name": lambda: torch.tensor(data=[torch.tensor(1.0)]),
    "as_tensor": lambda: torch.as_tensor([[torch.tensor(1.0), torch.tensor(2)]]),
    "asarray": lambda: torch.asarray(obj=[torch.tensor(1.0)]),
    "new_tensor": lambda: torch.ones(1).new_tensor([torch.tensor(2)]),
    "stack": lambda: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]),
    "numpy": lambda: torch.as_tensor(np.array([torch.tensor(1.0).item(), 2.0])),
    "array": lambda: torch.from_numpy(torch.arange(3).numpy() + 1),
    "drawn": lambda: torch.tensor([torch.randint(9, ()), torch.randint(9, ())]),
    "vectors": lambda: torch.tensor([torch.ones(2), torch.ones(2)]),
    "ragged": lambda: torch.tensor([[torch.tensor(1)], 2]),
    "no data": lambda: torch.tensor(),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    try:
        wanted = PROGRAMS[name]()
    except Exception as error:
        with mode(), pytest.raises(type(error)):
            PROGRAMS[name]()
        return
    torch.manual_seed(0)
    with mode():
        found = PROGRAMS[name]()
    assert is_fake(found)
    found = materialize_tensor(found) if mode is deferred_mode else found
    assert (found.shape, found.dtype, found.requires_grad) == (
        wanted.shape, wanted.dtype, wanted.requires_grad,
    )  # fmt: skip
    assert found.tolist() == wanted.tolist()


def test_a_deferred_draw_has_its_value() -> None:
    torch.manual_seed(0)
    wanted = torch.tensor([torch.rand(()), torch.rand(())])
    torch.manual_seed(0)
    with deferred_mode():
        found = torch.tensor([torch.rand(()), torch.rand(())])
    assert torch.equal(materialize_tensor(found), wanted)


def test_unknown_values_are_asked_for_by_name() -> None:
    with fake_mode():
        unknown = torch.ones(300, 300).sum()
        with pytest.raises(errors.UnknownValueError, match=r"item\(\) needs .* aten\.sum"):
            torch.tensor([unknown, unknown])


def test_a_device_context_outlives_the_mode() -> None:
    with fake_mode(), torch.device("meta"):
        torch.tensor([1.0])
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
        assert torch.as_tensor([1.0]).is_meta

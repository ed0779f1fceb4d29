"""``Tensor.apply_``, which C++ runs on memory: uncounted, and on each element of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(6.0).view(2, 3)[1]


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "whole": lambda: torch.zeros(3),
    "expanded": lambda: torch.zeros(1, 3).expand(2, 3),
    "overlapping": lambda: torch.zeros(4).as_strided((3, 2), (1, 1)),
    "part": lambda: torch.arange(6.0).view(2, 3).t()[1:, 1],
    "other dtype": lambda: torch.arange(3).view(torch.int32)[1::2],
    "conjugate view": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "none": lambda: torch.zeros(0, 3),
    "inference": _inference,
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", TENSORS)
def test_it_writes_what_eager_writes(name: str, mode: Any) -> None:
    def program() -> list[Any]:
        x = TENSORS[name]()
        base = x if x._base is None else x._base
        same = x.apply_(lambda number: number + 1) is x
        version = None if x.is_inference() else x._version
        return [
            same,
            version,
            x.tolist(),
            torch.view_as_real(base).tolist() if base.is_complex() else base.tolist(),
        ]

    expected = program()
    with mode():
        assert program() == expected

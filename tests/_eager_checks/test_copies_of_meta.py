"""Copies of meta tensors that are no fakes to a device with data: refused, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, is_fake, meta_init

COPIES: dict[str, Callable[[], Any]] = {
    "to": lambda: torch.ones(2, device="meta").to("cpu"),
    "to, with a dtype": lambda: torch.ones(2, device="meta").to("cpu", torch.float64),
    "to, of another": lambda: torch.ones(2, device="meta").to(torch.ones(3)),
    "cpu": lambda: torch.ones(2, device="meta").cpu(),
    "as_tensor": lambda: torch.as_tensor(torch.ones(2, device="meta"), device="cpu"),
    "copy_": lambda: torch.ones(2).copy_(torch.ones(2, device="meta")),
    "a module": lambda: nn.Linear(2, 2, device="meta").to("cpu"),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_eager_refuses(name: str) -> None:
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        COPIES[name]()
    for mode in (fake_mode, deferred_mode):
        with (
            mode(),
            pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"),
        ):
            COPIES[name]()


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_copies_that_eager_accepts(mode: Any) -> None:
    with mode():
        meta = torch.ones(2, device="meta")
        assert meta.copy_(torch.ones(2)).is_meta
        assert meta.double().is_meta
        assert meta.to("meta", copy=True).is_meta
        assert is_fake(torch.empty_like(meta, device="cpu"))
        assert is_fake(nn.Linear(2, 2, device="meta").to_empty(device="cpu").weight)


def test_fakes_that_report_meta_have_data() -> None:
    with meta_init():
        module = nn.Linear(2, 2)
    assert module.weight.is_meta
    assert module.to("cpu").weight.device.type == "cpu"

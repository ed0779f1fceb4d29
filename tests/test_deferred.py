"""What the functions of torchfake.deferred promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests._materialize.conftest import mlp, pair
from tests.oracle import assert_same
from torchfake import (
    FakeTensor,
    deferred_init,
    deferred_mode,
    errors,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)


def test_any_callable_and_any_return() -> None:
    def build(n: int, *, bias: bool) -> dict[str, Any]:
        return {"layer": nn.Linear(n, n, bias=bias), "rest": (torch.ones(n), [torch.arange(n)])}

    made = deferred_init(build, 3, bias=False)
    assert is_deferred(made["layer"])
    assert is_deferred(made["rest"][0])
    assert materialize_tensor(made["rest"][1][0]).tolist() == [0, 1, 2]
    assert deferred_init(lambda: 5) == 5


def test_is_deferred() -> None:
    layer = deferred_init(nn.Linear, 2, 2)
    with fake_mode():
        plain = nn.Linear(2, 2)
    assert is_deferred(layer)
    assert is_deferred(layer.bias)
    assert is_fake(layer)
    assert not is_deferred(plain)
    assert not is_deferred(nn.Linear(2, 2))
    assert not is_deferred(torch.ones(2))
    materialize_tensor(layer.bias)
    assert is_deferred(layer)
    with pytest.raises(ValueError, match="is_deferred takes a tensor or a module, not int"):
        is_deferred(3)  # type: ignore[arg-type]


def test_materialize_tensor_gives_the_same_object() -> None:
    with deferred_mode():
        tensor = torch.full((3,), 2.0)
    same = materialize_tensor(tensor)
    assert same is tensor
    assert type(same) is torch.Tensor
    address = tensor.data_ptr()
    assert materialize_tensor(tensor) is tensor
    assert tensor.data_ptr() == address
    real = torch.ones(2)
    assert materialize_tensor(real) is real


def test_part_of_a_module() -> None:
    eager, module = pair(mlp)
    materialize_module(module, check_fn=lambda m: isinstance(m, nn.BatchNorm1d))
    assert not is_deferred(module[1])
    assert is_deferred(module[0])
    materialize_module(module[2])
    assert is_deferred(module[0])
    assert_same(eager, materialize_module(module))


def test_buffers_only() -> None:
    _, module = pair(mlp)
    materialize_module(module, buffers_only=True)
    assert [name for name, t in module.named_parameters() if not is_deferred(t)] == []
    assert not any(is_deferred(buffer) for buffer in module.buffers())


def test_another_device() -> None:
    """What was built for a CUDA device that is not there is real on the CPU."""
    with deferred_mode(fake_cuda=True):
        module = nn.Linear(3, 4, device="cuda")
        module.register_buffer("ones", torch.ones(3, device="cuda:0"))
    if not torch.cuda.is_available():
        with pytest.raises(errors.MaterializeError, match="weight was recorded on cuda:0"):
            materialize_module(module)
    materialize_module(module, device="cpu")
    assert module.ones.tolist() == [1, 1, 1]
    assert module.weight.device.type == "cpu"
    assert module.weight.abs().max() <= 3**-0.5


def test_the_mode_nests_and_decorates() -> None:
    @deferred_mode()
    def build() -> torch.Tensor:
        with fake_mode():
            inner = torch.ones(2)
        assert isinstance(inner, FakeTensor)
        assert not is_deferred(inner)
        return torch.ones(3)

    assert materialize_tensor(build()).tolist() == [1, 1, 1]
    with fake_mode(), deferred_mode():
        made = torch.ones(2)
    assert materialize_tensor(made).tolist() == [1, 1]


def test_materializing_inside_a_mode() -> None:
    with deferred_mode():
        layer = nn.Linear(3, 4)
        materialize_module(layer)
        assert not is_fake(layer)
        again = nn.Linear(3, 4)
    assert is_deferred(again)


def test_default_device_and_dtype() -> None:
    def build() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("cpu"):
                return nn.Sequential(nn.Linear(3, 3), nn.Linear(2, 2, dtype=torch.bfloat16))
        finally:
            torch.set_default_dtype(torch.float32)

    eager, module = pair(build)
    assert_same(eager, materialize_module(module))


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    _, module = pair(mlp)
    materialize_module(module[0], progress=True)
    assert "Materializing: 100%" in capsys.readouterr().err
    materialize_module(module[1])
    materialize_module(module, progress=False)
    assert capsys.readouterr().err == ""

"""Every module of torch's own database, built deferred and materialized, has eager's bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, module_db

from tests.oracle import ORDERS, Order, assert_equals_eager

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def constructors(info: ModuleInfo) -> list[tuple[object, dict[str, object]]]:
    """The different ways that torch's tests build a module."""
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    found = {repr(s.constructor_input.args) + repr(s.constructor_input.kwargs): s for s in samples}
    return [(s.constructor_input.args, s.constructor_input.kwargs) for s in found.values()][:12]


@pytest.mark.parametrize(
    "info", [i for i in module_db if "Lazy" not in i.name], ids=lambda info: info.formatted_name
)
def test_module(info: ModuleInfo) -> None:
    """But the lazy ones, whose parameters have no shape to compare: test_install.py."""
    for args, kwargs in constructors(info):
        if any(isinstance(a, torch.Tensor) for a in [*args, *kwargs.values()]):  # type: ignore[misc]
            continue  # real weights of a loss
        assert_equals_eager(lambda: info.module_cls(*args, **kwargs))  # noqa: B023


class Bare(nn.Module):
    """A parameter and a buffer, initialized by one function of torch.nn.init."""

    def __init__(self, name: str, *args: object, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(24, 18, dtype=dtype))
        self.register_buffer("table", torch.empty(20, 20, dtype=dtype), persistent=False)
        initialize = getattr(nn.init, name)
        initialize(self.weight, *args)
        with torch.no_grad():
            initialize(self.table, *args)


INITIALIZERS: list[tuple[str, tuple[object, ...]]] = [
    ("uniform_", ()), ("normal_", ()), ("trunc_normal_", ()), ("trunc_normal_", (0.0, 0.02)),
    ("trunc_normal_", (0.0, 1.0, 2.0, 3.0)), ("constant_", (0.5,)), ("ones_", ()), ("zeros_", ()),
    ("eye_", ()), ("xavier_uniform_", ()), ("xavier_normal_", ()), ("kaiming_uniform_", ()),
    ("kaiming_normal_", ()), ("orthogonal_", ()), ("orthogonal_", (2.0,)), ("sparse_", (0.3,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), INITIALIZERS)
@pytest.mark.parametrize("order", ORDERS)
def test_initializer(name: str, args: tuple[object, ...], order: Order) -> None:
    assert_equals_eager(lambda: Bare(name, *args), [order])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["uniform_", "normal_", "trunc_normal_", "kaiming_uniform_"])
def test_initializer_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    assert_equals_eager(lambda: Bare(name, dtype=dtype))


def test_initializers_that_read_are_one_step() -> None:
    """Nothing is computed when they are called, in a mode or after it."""
    from torchfake import deferred_init, graph, materialize_module

    layer = deferred_init(nn.Linear, 500, 2000)  # 1,000,000 values, of rank 500
    for initialize in (nn.init.trunc_normal_, nn.init.orthogonal_):
        torch.manual_seed(3)
        initialize(layer.weight)
        lines = graph(layer.weight).lines
        assert len(lines) == 1
        assert initialize.__name__ in lines[0].op
    torch.manual_seed(3)
    expected = nn.init.orthogonal_(torch.empty(2000, 500))
    assert torch.equal(materialize_module(layer).weight, expected)

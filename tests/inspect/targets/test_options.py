"""Options as text: overrides, dtypes, devices."""

from __future__ import annotations

import pytest

from torchfake.errors import DeviceError, TargetError
from torchfake.inspect import device_named, dtype_named
from torchfake.inspect.targets.options import parse_overrides


def test_override_values():
    pairs = ["a=1", "b=true", "c=None", "d=[1, 2]", "e=(1, 2)", "f=gelu", "g.h=1e-5", "i=x=y", "j="]
    assert parse_overrides(pairs) == {
        "a": 1,
        "b": True,
        "c": None,
        "d": [1, 2],
        "e": (1, 2),
        "f": "gelu",
        "g.h": 1e-5,
        "i": "x=y",
        "j": "",
    }


@pytest.mark.parametrize("name", ["tpu", "mps", "meta", "cuda:300", "cuda:127", "cuda:-1", "gpu"])
def test_no_such_device(name):
    with pytest.raises(DeviceError, match=f"'{name}'"):
        device_named(name)


def test_no_such_dtype():
    with pytest.raises(TargetError, match="did you mean bf16"):
        dtype_named("bf17")
    with pytest.raises(TargetError, match="try float32, bf16 or fp16"):
        dtype_named("nn")
    with pytest.raises(TargetError, match="give a floating point dtype"):
        dtype_named("int8")

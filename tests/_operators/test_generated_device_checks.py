"""CPU tensors of no dims among CUDA tensors, for every operator whose kernel CUDA registers.

The oracle is native_functions.yaml, which torch's generator of kernels reads: unless it says
``device_check: NoCheck``, the generated code compares the devices of all tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchfake import deferred_mode, fake_mode
from torchfake._core.schemas import _REFUSING, _REFUSING_AT, traits_of

torchgen = pytest.importorskip("torchgen")
MANY = 2


@cache
def operators() -> list[tuple[Any, str, bool]]:
    """Operators of several tensors with a kernel for CUDA: their names, and if they are checked."""
    return list(_operators())


def _operators() -> Iterator[tuple[Any, str, bool]]:
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DeviceCheckType, DispatchKey

    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    by_name = {str(f.func.name): f for f in parsed.native_functions}
    for function in parsed.native_functions:
        name, overload = str(function.func.name.name), function.func.name.overload_name
        packet = getattr(torch.ops.aten, name, None)
        op = getattr(packet, overload or "default", None)
        tensors = [a for a in function.func.arguments.flat_non_out if a.type.is_tensor_like()]
        owner = by_name[str(function.structured_delegate or function.func.name)]
        if op is None or len(tensors) < MANY or name.startswith("_foreach_"):
            continue
        if parsed.backend_indices[DispatchKey.CUDA].has_kernel(owner):
            yield op, name.removesuffix("_"), owner.device_check != DeviceCheckType.NoCheck


def test_numbers_are_refused_where_devices_are_compared() -> None:
    found = operators()
    assert len(found) > 300
    accepted = [str(op) for op, _, is_checked in found if is_checked and not _refuses(op)]
    assert accepted == []


def test_numbers_are_taken_where_devices_are_not_compared() -> None:
    refused = {
        name
        for op, name, is_checked in operators()
        if not is_checked and _refuses(op) and not traits_of(op).mixes_devices
    }
    by_their_own_code = {*_REFUSING, *_REFUSING_AT}
    assert refused - by_their_own_code == set()


def _refuses(op: Any) -> bool:
    return bool(traits_of(op).refuses_numbers_at)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_targets_and_scales_are_refused(mode: Any) -> None:
    with mode(fake_cuda=True):
        scores, target = torch.randn(5, device="cuda"), torch.tensor(1)
        scale, zero = torch.tensor(0.1), torch.tensor(0, dtype=torch.int32)
        for call in (
            lambda: F.nll_loss(scores, target),
            lambda: F.cross_entropy(scores, target),
            lambda: torch.fake_quantize_per_tensor_affine(scores, scale, zero, 0, 255),
        ):
            with pytest.raises(RuntimeError, match="on the same device"):
                call()
        assert F.cross_entropy(scores, target.cuda()).device.type == "cuda"
        assert (scores + scale).device.type == "cuda"

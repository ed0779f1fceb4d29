"""What ``out=`` of decompositions and solutions leaves: strides, dtypes, errors, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_like, fake_mode, materialize_tensor
from torchfake._core import modes

A, B = torch.eye(4), torch.ones(4, 3)
ROTATED = torch.arange(12.0).reshape(3, 2, 2).transpose(0, 1)
COMPLEX = ROTATED + 1j * ROTATED.flip(0)
LU, PIVOTS = torch.linalg.lu_factor(A)
LD, LD_PIVOTS = torch.linalg.ldl_factor(A)


def batch_norm(input: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, **out: Any) -> Any:
    return torch.ops.aten._native_batch_norm_legit(
        input, None, None, mean, var, True, 0.1, 1e-5, **named_out(**out)
    )


def named_out(out: Any = None) -> dict[str, Any]:
    """``out=`` of an operator without a binding in Python."""
    return {} if out is None else dict(zip(("out", "save_mean", "save_invstd"), out, strict=True))


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "eig": (torch.linalg.eig, (A,), 2),
    "eigh": (torch.linalg.eigh, (A,), 2),
    "householder_product": (torch.linalg.householder_product, (A, torch.ones(4)), 1),
    "ldl_factor": (torch.linalg.ldl_factor, (A,), 2),
    "ldl_solve": (torch.linalg.ldl_solve, (LD, LD_PIVOTS, B), 1),
    "lu_factor": (torch.linalg.lu_factor, (A,), 2),
    "lu_solve": (torch.linalg.lu_solve, (LU, PIVOTS, B), 1),
    "qr": (torch.linalg.qr, (A,), 2),
    "geqrf": (torch.geqrf, (A,), 2),
    "mode": (torch.mode, (B,), 2),
    "histogram": (partial(torch.histogram, bins=5), (B,), 2),
    "histogram of edges": (torch.histogram, (B, torch.arange(5.0)), 2),
    "batch norm": (batch_norm, (B, torch.zeros(3), torch.ones(3)), 3),
    "solve": (torch.linalg.solve, (A, B), 1),
    "solve, a vector": (torch.linalg.solve, (A, torch.ones(4)), 1),
    "cholesky": (torch.cholesky, (A,), 1),
    "cholesky_inverse": (torch.cholesky_inverse, (A,), 1),
    "ormqr": (torch.ormqr, (A, torch.ones(4), B), 1),
    "solve_triangular": (partial(torch.linalg.solve_triangular, upper=True), (A, B), 1),
    "fft": (torch.fft.fft, (ROTATED,), 1),
    "irfft2": (torch.fft.irfft2, (COMPLEX,), 1),
    "abs": (torch.abs, (ROTATED,), 1),
    "addr": (torch.addr, (B.t(), torch.ones(3), torch.ones(4)), 1),
    "abs of complex": (torch.abs, (COMPLEX,), 1),
    "angle of complex": (torch.angle, (COMPLEX,), 1),
    "matmul of a batch": (torch.matmul, (ROTATED, torch.eye(2)), 1),
    "image to columns": (
        partial(torch._C._nn.im2col, kernel_size=1, dilation=1, padding=0, stride=1),
        (ROTATED,),
        1,
    ),
    "batch norm in eval": (
        lambda *args, out=None: torch.native_batch_norm(
            *args, False, 0.1, 1e-5, **({} if out is None else {"out": out})
        ),
        (ROTATED, None, None, torch.zeros(3), torch.ones(3)),
        3,
    ),
}
OUTPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda result: result.new_empty(0),
    "of another size": lambda result: result.new_empty((3, *result.shape) if result.numel() else 0),
    "of other strides": lambda result: result.new_empty((*result.shape, 2))[..., 0],
    "of another dtype": lambda result: torch.empty(result.shape, dtype=torch.float64),
}

if torch.__version__ >= "2.15":
    del CALLS["cholesky"]  # was removed from torch


pytestmark = [
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),
    pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated"),
]


@pytest.mark.parametrize("recorded_before", [False, True])
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("name", CALLS)
def test_equals_eager(
    name: str, kind: str, recorded_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a recording, tensors that C++ makes outside of modes are seen: ``info``, for one."""
    monkeypatch.setattr(modes.recording, "is_used", recorded_before)
    call, arguments, num_outputs = CALLS[name]
    results = call(*arguments)

    def left(convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        news = results if num_outputs > 1 else (results,)
        out = tuple(convert(OUTPUTS[kind](new)) for new in news)
        try:
            given = [arg if arg is None else convert(arg) for arg in arguments]
            call(*given, out=out if num_outputs > 1 else out[0])
        except RuntimeError:
            return RuntimeError
        return [(each.shape, each.stride(), each.dtype) for each in out]

    assert left(fake_like) == left(lambda tensor: tensor)


@pytest.mark.parametrize("kind", [*OUTPUTS, "complex"])
@pytest.mark.parametrize("name", [*CALLS, "normal"])
def test_materialized_values_equal_eager(name: str, kind: str) -> None:
    """Bytes that lie otherwise than the strides say are permuted values."""
    call, arguments, num_outputs = {**CALLS, "normal": (torch.normal, (ROTATED, ROTATED), 1)}[name]
    results = call(*arguments)
    places = [
        torch.empty(0, dtype=torch.complex64) if kind == "complex" else OUTPUTS[kind](each)
        for each in (results if num_outputs > 1 else (results,))
    ]

    def written() -> Any:
        torch.manual_seed(0)
        out = tuple(
            torch.empty_strided(like.shape, like.stride(), dtype=like.dtype) for like in places
        )
        given = [arg if arg is None else arg.clone() for arg in arguments]  # on fakes: recorded
        try:
            call(*given, out=out if num_outputs > 1 else out[0])
        except RuntimeError:
            return ()
        return out

    expected = written()
    with deferred_mode():
        deferred = written()
    assert len(deferred) == len(expected)
    for tensor, real in zip(map(materialize_tensor, deferred), expected, strict=True):
        assert tensor.stride() == real.stride()
        is_written = name != "batch norm in eval" or real is expected[0]  # not its statistics
        assert not is_written or torch.equal(tensor, real)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_solutions_of_known_values_are_written(driver: str) -> None:
    """``out=`` under several names, and a driver, which is checked first. The routine's last bits
    vary from call to call.
    """

    def solve() -> list[Any]:
        square = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        out = [torch.empty(0), torch.empty(0), torch.empty(0).long(), torch.empty(0)]
        found = torch.linalg.lstsq(square, square, driver=driver, out=tuple(out))
        assert all(each is given for each, given in zip(found, out, strict=True))
        return [(each.dtype, each.stride(), each.numpy().round(3).tolist()) for each in out]

    expected = solve()
    with fake_mode():
        assert solve() == expected

"""Fakes on CUDA run the operators of CUDA: those that torch's own FakeTensorMode shows there.

All of torch's operators and modules: ``nox -s cuda_operators``. The differences are listed in
``cuda_operators.UNTOLD``, with their reasons. On builds without CUDA torch's own fakes cannot be
asked: tests/_operators/test_cuda.py has what they say.
"""

from __future__ import annotations

import pytest
import torch

from tests.opinfo import cuda_operators as oracle

FLOATS = [torch.float32, torch.float16, torch.bfloat16]

pytestmark = [
    pytest.mark.skipif(
        not torch.backends.cuda.is_built() or torch.cuda.is_available(),
        reason="asks torch's own fakes, which need a build with CUDA and run without a GPU",
    ),
    pytest.mark.filterwarnings("ignore"),  # of torch's own fakes, and of operators in beta
]


@pytest.fixture
def every(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--all-samples"))


def test_operators(every: bool) -> None:
    dtypes, step, num_samples = (FLOATS, 1, 4) if every else (FLOATS[:2], 30, 1)
    counts, lines = oracle.compare_all(oracle.operator_cases(dtypes, step, num_samples))
    assert not lines, "\n".join(lines)
    assert counts["same"] > (4000 if every else 25), counts


def test_modules(every: bool) -> None:
    dtypes, step, num_samples = (FLOATS, 1, 8) if every else (FLOATS[:2], 12, 1)
    counts, lines = oracle.compare_all(oracle.module_cases(dtypes, step, num_samples))
    assert not lines, "\n".join(lines)
    assert counts["same"] > (1000 if every else 8), counts


@pytest.mark.parametrize(
    "name", ["nn.functional.batch_norm", "nn.functional.rms_norm", "softmax.with_dtype"]
)
def test_operators_with_a_kernel_of_ours(name: str) -> None:
    counts, lines = oracle.compare_all(oracle.operator_cases(FLOATS, 1, 3, name))
    assert not lines, "\n".join(lines)
    assert counts["same"] >= 6, counts

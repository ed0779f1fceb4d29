"""What eager refuses is refused in modes, by exceptions of the same type; what it takes is taken.

Operators that once differed in the suite; with ``--all-samples`` (``nox -s recorded``) all.
"""

from contextlib import nullcontext

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.refused import tally_of_errors, tally_of_outputs
from tests.opinfo.shortfalls import OUTPUTS, REFUSED
from torchfake import deferred_mode, fake_mode

MODES = [fake_mode, deferred_mode]
ONCE_ACCEPTED = ("index_add", "masked_scatter", "bucketize", "nn.functional.huber_loss",
                 "nn.functional.max_unpool2d", "linalg.lstsq")  # fmt: skip
ONCE_WRITTEN = (
    "all", "any", "amax", "bitwise_not", "bucketize", "cat", "conj_physical", "fmod", "frexp",
    "index_select", "isin", "linalg.cross", "linalg.eigvalsh", "neg", "scatter_reduce.amin",
    "sort", "stack", "take", "tril",
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore")
def test_refused_arguments(mode, request):
    names = OPS if request.config.getoption("--all-samples") else ONCE_ACCEPTED
    check({name: tally_of_errors(OPS[name], mode) for name in names}, REFUSED)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_dtypes_of_out(dtype, mode, request):
    names = OPS if request.config.getoption("--all-samples") else ONCE_WRITTEN
    check({name: tally_of_outputs(OPS[name], dtype, mode) for name in names}, OUTPUTS)


def check(tallies, known):
    assert sum(each.num_samples for each in tallies.values()) > 5
    found = {name: grouped(each.failures) for name, each in tallies.items() if each.failures}
    new = {name: text for name, text in found.items() if name not in known}
    assert not new, f"new failures: {new}"


def refusal(mode, call):
    try:
        with mode():
            call()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(3, 2).index_select(0, torch.tensor([[1]])),
        lambda: torch.ones(2).put_(torch.tensor([0]), torch.ones(1).long()),
        lambda: torch.ones(2).index_add_(0, torch.tensor([0]), torch.ones(1).long()),
        lambda: torch.ones(2).index_put_((torch.tensor([0]),), torch.ones(1).long()),
        lambda: torch.any(torch.ones(3), out=torch.empty(())),
        lambda: torch.linalg.eigvalsh(torch.eye(2), out=torch.empty(0, dtype=torch.float64)),
        lambda: torch.ones(2, 3).expand(3),
        lambda: torch.nn.functional.embedding(torch.ones(2), torch.ones(2, 2)),
    ],
)
def test_texts_are_those_of_eager(call, mode):
    """Of dtypes of single arguments, and of the names of types."""
    expected = refusal(nullcontext, call)
    assert expected is not None
    assert refusal(mode, call) == expected

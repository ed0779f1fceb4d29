"""Version counters of arguments, results and gradients are those of eager.

Operators that write their arguments, or whose counters once differed, in the suite; with
``--all-samples`` all, but for those of sparse tensors, which fakes do not have.
"""

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.shortfalls import VERSIONS
from tests.opinfo.version_counters import WAYS, tally
from torchfake import deferred_mode, fake_mode

SOME = ("add", "addmm", "cat", "copysign", "index_put", "masked_fill", "nn.functional.batch_norm",
        "nn.functional.dropout", "nn.functional.one_hot", "scatter_add", "sort", "t")  # fmt: skip
ALL = [n for n, op in OPS.items() if "sparse" not in n and op.supported_dtypes("cpu")]


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("way", WAYS)
def test_version_counters_equal_eager(way, mode, request):
    is_full = request.config.getoption("--all-samples")
    num_calls, failures = 0, {}
    for name in ALL if is_full else SOME:
        op = OPS[name]
        found = tally(op, dtype_of(op), way, mode, 3)
        num_calls += found.num_samples
        if found.failures and name not in VERSIONS.get(way, ()):
            failures[name] = grouped(found.failures)
    print(f"\n{num_calls} calls")
    assert num_calls > 5
    assert not failures


def dtype_of(op):
    supported = op.supported_dtypes("cpu")
    return next(t for t in (torch.float32, torch.int64, *supported) if t in supported)


def test_the_lists_name_operators():
    assert all(set(names) <= set(OPS) for names in VERSIONS.values())

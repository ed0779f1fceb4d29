"""torch's operator database with written memory that repeats or is shared: refused as in eager.

One way of sharing for each operator in the suite; with ``--all-samples`` (``nox -s layouts``) all.
"""

import zlib

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.overlaps import WAYS, tally
from tests.opinfo.shortfalls import SHARING

REFUSED = ("repeated", "shifted", "same_begin")
"""What eager refuses of some operators; the other ways it never does."""


@pytest.mark.filterwarnings("ignore")
def test_refused_as_in_eager(request):
    is_full = request.config.getoption("--all-samples")
    num_calls, failures = 0, {}
    for name, op in OPS.items():
        if op.inplace_variant is None and not op.supports_out:
            continue
        for way in WAYS if is_full else [drawn(name)]:
            found = tally(op, dtype_of(op), way, None if is_full else 1)
            num_calls += found.num_samples
            if found.failures and name not in SHARING:
                failures[f"{name} ({way})"] = grouped(found.failures)
    print(f"\n{num_calls} calls")
    assert num_calls > 200
    assert not failures


def dtype_of(op):
    return torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64


def drawn(name):
    """The way of an operator in the suite."""
    return REFUSED[zlib.crc32(name.encode()) % len(REFUSED)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_some_operators_in_all_ways(way):
    for name in ("add", "addmm", "cat", "index_fill", "masked_fill", "scatter", "fill", "mm"):
        found = tally(OPS[name], torch.float32, way, 4)
        assert not found.failures, (name, found.failures)

"""torch's operator database, recorded in a deferred mode and made real: the bits of eager.

A few samples in the suite; with ``--all-samples`` (``nox -s recorded``) all, in six dtypes.
"""

import zlib

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.recorded import WAYS, tally
from tests.opinfo.shortfalls import RECORDED

DTYPES = ("float32", "bfloat16", "float64", "int64", "bool", "complex64")
SAMPLED = {"float32": 1}  # samples of each operator in the suite, by dtype
ASKING = ("matmul", "linalg.svdvals", "linalg.eigvalsh", "linalg.cond", "norm.nuc",
          "nn.functional.ctc_loss", "nn.functional.embedding_bag")  # fmt: skip
NUM_PARTS = 4


def pytest_generate_tests(metafunc):
    if "dtype" in metafunc.fixturenames:
        is_full = metafunc.config.getoption("--all-samples")
        metafunc.parametrize("dtype", DTYPES if is_full else sorted(SAMPLED))


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_made_real_equals_eager(dtype, way, part, request):
    limit = None if request.config.getoption("--all-samples") else SAMPLED[dtype]
    names = [name for name in sorted(OPS) if zlib.crc32(name.encode()) % NUM_PARTS == part]
    num_samples, new = run(names, getattr(torch, dtype), way, limit)
    print(f"\n{dtype} {way}: {num_samples} samples")
    assert num_samples
    assert not new, f"new failures: {new}"


@pytest.mark.filterwarnings("ignore")
def test_what_once_had_other_bits():
    """All samples of operators whose composites ask C++ about the kind of their tensors."""
    num_samples, new = run(ASKING, torch.float32, "cloned", None)
    assert num_samples > 100
    assert not new, f"new failures: {new}"


def run(names, dtype, way, limit):
    """How many samples there were, and a line for each operator that is not on the list."""
    new, num_samples = {}, 0
    for name in names:
        for variant in ("function", "inplace"):
            found = tally(OPS[name], dtype, variant, way, limit)
            num_samples += found.num_samples
            if found.failures and name not in RECORDED:
                new[f"{name} ({variant})"] = grouped(found.failures)
    return num_samples, new


def test_the_list_of_shortfalls_is_short() -> None:
    assert len(RECORDED) <= 6
    assert RECORDED.keys() <= OPS.keys()


def test_what_is_on_the_list_falls_short() -> None:
    """An operator that passes now is taken off."""
    for name in RECORDED:
        failures = [
            failure
            for variant in ("function", "inplace")
            for way in ("external", "cloned")
            for failure in tally(OPS[name], torch.float32, variant, way).failures
        ]
        assert failures, f"{name} passes now"

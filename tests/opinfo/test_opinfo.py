"""torch's operator database: every sample of every operator, fake against eager."""

import zlib

import pytest
import torch

from tests.opinfo.harness import OPS, VARIANTS, grouped, tallies
from tests.opinfo.shortfalls import SHORTFALLS, SINCE, UNTIL

# Variants that are the same call, on several devices, share the samples and eager's results.
CASES = [
    (["function", "cuda"], "float32"),
    (["method"], "float32"),
    (["inplace"], "float32"),
    (["backward"], "float32"),
    (["function"], "bfloat16"),
    (["function"], "int64"),
    (["function"], "complex64"),
]
IDS = ["+".join(variants) + f"-{dtype}" for variants, dtype in CASES]
NUM_PARTS = 4  # each case in parts, so that the test processes share the work

# Operators and samples of float32 functions on the CPU that each part has right at least, of all
# that eager can run, so that the database and the tables cannot shrink unnoticed: 655 operators and
# 17,400 samples in all. From each of these versions on, torch has other operators in its database.
MIN_FIGURES = {
    "2.12": [(164, 5_935), (155, 2_569), (181, 4_549), (151, 4_204)],
    "2.13": [(167, 6_027), (156, 2_620), (181, 4_549), (151, 4_204)],
    "2.14": [(165, 5_992), (158, 2_750), (182, 4_576), (151, 4_167)],
    "2.15": [(165, 5_992), (158, 2_776), (182, 4_576), (151, 4_167)],
}


def expected(variant: str, dtype: str) -> dict[str, str]:
    """The table of a case, cut to the torch at hand."""
    case, version = f"{variant}-{dtype}", torch.torch_version.TorchVersion(torch.__version__)
    return {
        name: reason
        for name, reason in SHORTFALLS[case].items()
        if version >= SINCE.get((case, name), "0") and version < UNTIL.get((case, name), "99")
    }


def test_every_table_is_run() -> None:
    run = {f"{variant}-{dtype}" for variants, dtype in CASES for variant in variants}
    assert run == set(SHORTFALLS)


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize(
    ("variants", "dtype"), CASES, ids=lambda v: v if isinstance(v, str) else "+".join(v)
)
@pytest.mark.filterwarnings("ignore")
def test_equals_eager(variants, dtype, part):
    names = [name for name in sorted(OPS) if zlib.crc32(name.encode()) % NUM_PARTS == part]
    found = {
        name: tallies(OPS[name], getattr(torch, dtype), [VARIANTS[v] for v in variants])
        for name in names
    }
    for i, variant in enumerate(variants):
        by_name = {name: several[i] for name, several in found.items()}
        check_failures(by_name, expected(variant, dtype))
        if (variant, dtype) == ("function", "float32"):
            check_figures(by_name, part)


def check_failures(tallies, known):
    failed = {name: grouped(t.failures) for name, t in tallies.items() if t.failures}
    new = {name: why for name, why in failed.items() if name not in known}
    passing = [name for name in tallies if name in known and name not in failed]
    assert not new, f"new failures: {new}"
    assert not passing, f"these pass now, take them off the list: {passing}"


def check_figures(tallies, part):
    """The count over the whole database, which the tables alone would not show to shrink."""
    run = [t for t in tallies.values() if t.num_samples]
    num_ops = sum(not t.failures for t in run)
    num_samples = sum(t.num_samples - len(t.failures) for t in run)
    total = sum(t.num_samples for t in run)
    print(f"\n{num_ops} of {len(run)} ops, {num_samples} of {total} samples")
    since = [version for version in MIN_FIGURES if torch.__version__ >= version][-1]
    min_ops, min_samples = MIN_FIGURES[since][part]
    assert num_ops >= min_ops
    assert num_samples >= min_samples

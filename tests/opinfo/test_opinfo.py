"""torch's operator database: every sample of every operator, fake against eager."""

import pytest
import torch
from harness import OPS, VARIANTS, grouped, tally
from shortfalls import SHORTFALLS, SINCE, UNTIL

CASES = [tuple(key.rsplit("-", 1)) for key in SHORTFALLS]
NUM_PARTS = 4  # each variant in parts, so that the test processes share the work

# What the issue of this suite asks of float32 functions on CPU, of all samples eager can run.
MIN_OPS, MIN_SAMPLES = 655, 17_400


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny samples: threads only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def expected(variant: str, dtype: str) -> dict[str, str]:
    """The table of a case, cut to the torch at hand."""
    case, version = f"{variant}-{dtype}", torch.torch_version.TorchVersion(torch.__version__)
    return {
        name: reason
        for name, reason in SHORTFALLS[case].items()
        if version >= SINCE.get((case, name), "0") and version < UNTIL.get((case, name), "99")
    }


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize(("variant", "dtype"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_equals_eager(variant, dtype, part):
    names = sorted(OPS)[part::NUM_PARTS]
    known = expected(variant, dtype)
    failed = {}
    for name in names:
        failures = tally(OPS[name], getattr(torch, dtype), VARIANTS[variant]).failures
        if failures:
            failed[name] = grouped(failures)
    new = {name: why for name, why in failed.items() if name not in known}
    passing = [name for name in names if name in known and name not in failed]
    assert not new, f"new failures: {new}"
    assert not passing, f"these pass now, take them off the list: {passing}"


@pytest.mark.filterwarnings("ignore")
def test_figures():
    """The count over the whole database, which the tables alone would not show to shrink."""
    tallies = [tally(op, torch.float32, VARIANTS["function"]) for op in OPS.values()]
    run = [t for t in tallies if t.num_samples]
    num_ops = sum(not t.failures for t in run)
    num_samples = sum(t.num_samples - len(t.failures) for t in run)
    print(
        f"\n{num_ops} of {len(run)} ops, {num_samples} of {sum(t.num_samples for t in run)} samples"
    )
    assert num_ops >= MIN_OPS
    assert num_samples >= MIN_SAMPLES

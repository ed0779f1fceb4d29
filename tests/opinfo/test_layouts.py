"""torch's operator database with arguments in other layouts: strides equal eager's.

One sample in one layout of each operator in the suite; with ``--all-samples``
(``nox -s layouts``) all samples in all layouts.
"""

import zlib

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.layouts import LAYOUTS, tally
from tests.opinfo.shortfalls import LAID_OUT

NUM_PARTS = 4
LAYERS = ("nn.functional.conv1d", "nn.functional.conv_transpose1d", "nn.functional.max_pool1d",
          "nn.functional.conv_transpose3d", "nn.functional.pad.reflect", "ldexp", "view_copy",
          "nn.functional.pad.replicate", "nn.functional.channel_shuffle", "nn.functional.glu",
          "_batch_norm_with_update")  # fmt: skip


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.filterwarnings("ignore")
def test_layouts_equal_eager(part, request):
    is_full = request.config.getoption("--all-samples")
    names = [name for name in sorted(OPS) if zlib.crc32(name.encode()) % NUM_PARTS == part]
    num_samples, new, failing = 0, {}, set()
    for name in names:
        for layout in LAYOUTS if is_full else [drawn(name)]:
            found = tally(OPS[name], dtype_of(name), layout, None if is_full else 1)
            num_samples += found.num_samples
            if not found.failures:
                continue
            failing.add(name)
            if name not in LAID_OUT:
                new[f"{name} ({layout})"] = grouped(found.failures)
    print(f"\n{num_samples} samples")
    assert num_samples > 70
    assert not new, f"new failures: {new}"
    if is_full:
        passing = {name for name in names if name in LAID_OUT} - failing
        assert not passing, f"these pass now, take them off the list: {passing}"


def dtype_of(name):
    return torch.float32 if torch.float32 in OPS[name].supported_dtypes("cpu") else torch.int64


def drawn(name):
    """The layout of an operator in the suite."""
    return list(LAYOUTS)[zlib.crc32(name.encode()) % len(LAYOUTS)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore")
def test_what_once_had_other_strides(layout):
    for name in LAYERS:
        found = tally(OPS[name], torch.float32, layout, 10)
        assert not found.failures, (name, found.failures)


def test_the_list_names_operators() -> None:
    assert LAID_OUT.keys() <= OPS.keys()

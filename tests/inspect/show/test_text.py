"""Plain text of a summary, to the letter."""

from __future__ import annotations

import re

import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import fake_mode
from torchfake.inspect import estimate, fit, summary
from torchfake.inspect.records.units import bytes_text


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), *(nn.Linear(8, 8) for _ in range(3)), nn.BatchNorm1d(8))


def test_as_text() -> None:
    text = str(summary(small(), torch.ones(2, 4)))
    assert text.isascii()
    expect(
        text,
        """\
272 params | 1.09 kB (1.06 KiB) fp32

module              output  parameters  % of total    bytes  buffer bytes  FLOPs forward  FLOPs backward  tensors
Sequential          [2, 8]         272       100.0  1.09 kB          72 B            896          1.66 k
  (0) Linear        [2, 8]          40        14.7    160 B                          128             128  weight [8, 4], bias [8]
  (1-3) 3 x Linear  [2, 8]         216        79.4    864 B                          768          1.54 k  weight [8, 8], bias [8]
  (4) BatchNorm1d   [2, 8]          16         5.9     64 B          72 B                                 weight [8], bias [8], running_mean [8] buffer, running_var [8] buffer, num_batches_tracked [] int64 buffer

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters  272, 1.09 kB
buffers     17 values, 72 B
dtype       float32 1.15 kB, int64 8 B
device      cpu
input       0 float32[2, 4] on cpu
operations  896 FLOPs forward, 1.66 kFLOPs backward""",
    )


def test_reserved_memory_is_compared_with_the_peak() -> None:
    """Not with what is allocated when most is reserved: an optimizer's step may reserve the last
    bytes, in blocks of its own size, while the many blocks of activations are cached.
    """
    with fake_mode():
        layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
        found = estimate(
            nn.Sequential(*layers), torch.empty(20_000, 256), gpu="t4-16gb", optimizer="adamw"
        )
    assert found.peak_reserved_bytes is not None
    assert found.fragmentation_bytes is not None
    more = found.peak_reserved_bytes - found.peak_bytes
    assert found.fragmentation_bytes > 5 * more > 0
    line = next(line for line in str(found).splitlines() if line.startswith("reserved"))
    assert line.endswith(f"by the caching allocator, {bytes_text(more)} more than the peak")


def test_sizes_of_generated_pictures_are_shown_as_nobody_has_named_them() -> None:
    model, _ = model_and_inputs("vit")
    for found in (estimate(model, batch=3), fit(model, "t4-16gb", batch=3)):
        assert re.search(r"^input +pixel_values float32\[3, 3, 32, 32\]$", str(found), re.MULTILINE)
    model, _ = model_and_inputs("gpt2")
    assert not re.search("^input ", str(estimate(model, batch=3)), re.MULTILINE)

"""What the first line says of a step: what is trained, in which dtypes."""

from __future__ import annotations

import torch
from torch import nn

from torchfake import estimate, fake_mode

IDLE = "the parameters have the dtype of autocast already: mixed precision keeps them in float32"


def first_line(module: nn.Module, **options: object) -> str:
    x = torch.empty(4, 8, dtype=next(module.parameters()).dtype, device="meta")
    found = estimate(module, x, optimizer="adamw", gpu="h100-80gb", **options)  # type: ignore[arg-type]
    return str(found).splitlines()[0]


def test_a_step_that_trains_some_parameters_says_how_many() -> None:
    with fake_mode():
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    assert "; training with adamw in fp32" in first_line(module)
    module[0].requires_grad_(False)
    assert "; training 18 params with adamw in fp32" in first_line(module)


def test_autocast_to_the_dtype_of_the_parameters_is_a_warning() -> None:
    with fake_mode():
        half, full = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8)
    for module, is_idle in ((half, True), (full, False)):
        x = torch.empty(4, 8, dtype=module.weight.dtype, device="meta")
        found = estimate(module, x, optimizer="adamw", autocast=torch.bfloat16, gpu="h100-80gb")
        assert any(text.startswith(IDLE) for text in found.counted.warnings) == is_idle
        assert (IDLE in str(found)) == is_idle
        assert found.to_dict()["warnings"] == [*found.counted.warnings]

"""Estimates of steps on CUDA against torch's own CUDA backend, without a GPU.

All models: ``nox -s cuda_stand_in``. The recorded peaks are those of ``worker_cuda_steps --record``,
for the versions of torch that were built with CUDA then.
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.inspect.memory import worker_cuda_steps as steps

RECORDED = json.loads(steps.RECORDED.read_text()).get(".".join(torch.__version__.split(".")[:2]))
SLACK_BYTES = 8192
"""Small tensors that end a few blocks earlier or later."""


@pytest.mark.skipif(RECORDED is None, reason="recorded with torch 2.12 to 2.15")
@pytest.mark.parametrize(
    "case",
    [
        ("convnet", "training"),
        ("gpt2", "autocast"),
        ("llama", "checkpointing"),
        ("t5", "bfloat16"),
        ("vit", "forward"),
        ("llama", "inference"),
    ],
    ids=" ".join,
)
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_peaks_on_cuda(case: steps.Case) -> None:
    pytest.importorskip("transformers")
    allocated, reserved = RECORDED[" ".join(case)]
    own_allocated, own_reserved = steps.estimated(case, "a100-80gb")
    assert abs(own_allocated - allocated) <= SLACK_BYTES
    assert own_reserved == reserved


def test_every_kind_is_recorded() -> None:
    cases = {f"{name} {kind}" for name in steps.MODELS for kind in steps.KINDS}
    assert all(found.keys() == cases for found in json.loads(steps.RECORDED.read_text()).values())

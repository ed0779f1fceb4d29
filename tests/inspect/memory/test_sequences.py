"""Steps of several lengths and a pass of evaluation: what is allocated and reserved.

The oracle is torch's own allocator, by ``worker_cuda_lengths``; what it did is recorded.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.inspect.memory import worker_cuda_lengths as lengths
from torchfake import Serve, estimate, fake_mode, fit
from torchfake.errors import InputsError
from torchfake.inspect import Estimate

RECORDED = json.loads(lengths.RECORDED.read_text()).get(".".join(torch.__version__.split(".")[:2]))


@pytest.mark.skipif(RECORDED is None, reason="recorded with torch 2.15")
@pytest.mark.parametrize("case", lengths.CASES, ids=lambda case: case.name)
def test_what_is_reserved_on_cuda(case: lengths.Case) -> None:
    allocated, reserved, after = RECORDED[case.name]
    own_allocated, own_reserved, own_after = lengths.estimated(case)
    assert abs(own_allocated - allocated) <= lengths.SLACK_BYTES
    assert abs(own_reserved / reserved - 1) < 0.005
    assert abs(own_after / after - 1) < 0.005


def trained(seq: int = 512, **options: object) -> Estimate:
    with fake_mode():
        model, ids = lengths.Text(), torch.zeros(lengths.BATCH, seq, dtype=torch.long)
    how = {"optimizer": "adamw", "loss": lengths.mean_square, "gpu": "a100-40gb"}
    return estimate(model, ids, **how, **options)


LENGTHS = [464, 229, 420, 487, 247, 52, 164, 293]


def test_the_peak_is_that_of_the_longest_and_more_is_reserved() -> None:
    alone, several = trained(487), trained(lengths=LENGTHS)
    assert several.peak_bytes == alone.peak_bytes
    assert several.counted.seq == 487
    assert several.peak_reserved_bytes > alone.peak_reserved_bytes
    assert [each.counted.seq for each in several.steps] == LENGTHS
    assert several.to_dict()["lengths"] == LENGTHS
    assert "8 steps of 52 to 487 tokens; the peak is that of 487, reserved" in str(several)


def test_one_length_is_a_step_of_that_length() -> None:
    assert trained(lengths=[300]).reserved == trained(300).reserved


def test_the_order_decides_what_is_reserved() -> None:
    orders = (sorted(LENGTHS), sorted(LENGTHS, reverse=True))
    assert len({trained(lengths=order).peak_reserved_bytes for order in orders}) == 2


def test_fit_varies_the_batch_of_all_lengths() -> None:
    found = trained(lengths=LENGTHS)
    (several,) = fit(found, "t4-16gb")
    (alone,) = fit(trained(487), "t4-16gb")
    assert several.largest <= alone.largest
    assert found.on(found.gpu).reserved == found.reserved
    with pytest.raises(InputsError, match="lengths= gives the lengths itself"):
        fit(found, "t4-16gb", vary="seq")


def test_a_snapshot_has_the_steps_of_all_lengths() -> None:
    found = trained(lengths=[512, 100], evaluation=4)
    segments = found.snapshot()["segments"]
    assert sum(each["total_size"] for each in segments) == found.peak_reserved_bytes


def test_an_evaluation_has_the_state_of_training_beside_it() -> None:
    found = trained(evaluation=32)
    alone = found.evaluation
    assert alone is not None
    assert alone.counted.batch == 32
    state = 2 * sum(p.nbytes for p in lengths.Text().parameters())
    gradients = state // 2
    held = found.evaluation_peak_bytes - alone.peak_bytes
    workspaces = found.workspace_bytes - alone.workspace_bytes
    assert 0 <= held - workspaces - state - gradients < 10_000
    assert found.peak_bytes == trained().peak_bytes
    assert found.peak_reserved_bytes > trained().peak_reserved_bytes
    assert "with batch 32, in training's memory" in str(found)


def test_what_is_held_after_a_step() -> None:
    found = trained()
    parameters = sum(p.nbytes for p in lengths.Text().parameters())
    logits = 4 * 512 * 8192 * 4
    held = found.after_step_bytes - found.workspace_bytes - 4 * parameters - logits
    assert 0 <= held < 100_000  # the tokens, the loss and counters of steps
    assert found.after_step_reserved_bytes == found.peak_reserved_bytes
    assert found.to_dict()["after_step_bytes"] == found.after_step_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, "give a list of numbers of tokens"),
        ({"lengths": [8, 0]}, "give a list of numbers of tokens"),
        ({"lengths": 8}, "give a list of numbers of tokens"),
        ({"evaluation": 0}, "is not a batch size"),
        ({"evaluation": 8, "optimizer": None}, "in the memory of training"),
        ({"lengths": [8], "optimizer": None, "decode": (8, 8)}, "decode= gives the lengths"),
        ({"lengths": [8], "optimizer": None, "serve": Serve(64)}, "serve= gives the lengths"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, object], message: str) -> None:
    inputs = () if "serve" in options else (torch.zeros(8, 8, dtype=torch.long),)
    with pytest.raises(InputsError, match=message):
        estimate(lengths.Text(), *inputs, **{"optimizer": "adamw", "gpu": "a100-40gb", **options})


def test_images_have_no_lengths() -> None:
    with pytest.raises(InputsError, match="no input has a seq"):
        estimate(nn.Conv2d(3, 3, 3), torch.zeros(2, 3, 8, 8), lengths=[8])

"""The peer: torch.distributed._tools.MemTracker, on the same models and steps."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator

from tests.inspect.memory.memory_oracle import loss_of
from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake import estimate, fake_mode


def tracked(model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, int]:
    """The peak of two training steps on real tensors, and what it is made of."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *inputs.values())
    with tracker, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own
        for _ in range(2):
            optimizer.zero_grad()
            output = model(**inputs)
            loss = loss_of(output)
            loss.backward()
            optimizer.step()
            tracker.reset_mod_stats()
            del output, loss
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return {getattr(key, "value", key): size for key, size in found.items()}


NEW_SUMS = {"convnet": 4 * 16 * 4 * 4 * 4}
"""Bytes of the sum of two gradients, at the peaks of models: under the mode that MemTracker is,
autograd takes new memory for it, and plain tensors are added in place.
"""


@pytest.mark.parametrize("name", MODELS)
def test_the_same_peak(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = estimate(model, inputs, optimizer="adamw")
    theirs = tracked(model, inputs)
    new_sum = NEW_SUMS.get(name, 0)
    assert found.peak_bytes + new_sum == theirs["Total"]
    ours = found.peak.by_category
    assert ours["parameters"] == theirs["Parameter"]
    moving = ("gradients", "activations", "temporaries", "optimizer state")
    assert new_sum + sum(ours.get(name, 0) for name in moving) == sum(
        theirs[name] for name in ("Gradient", "Activation", "Temp", "Optstate")
    )
    if found.peak.phase == "backward":  # in the optimizer, its temporaries are state to them
        assert ours["optimizer state"] == theirs["Optstate"]


def test_what_torchs_tools_say_of_fakes() -> None:
    """As docs/limits.md says."""
    with fake_mode():
        model, x = torch.nn.Linear(3, 4), torch.ones(2, 3)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            model(x).sum().backward()
        assert tracker.get_tracker_snapshot("peak") == {}
        estimating = RuntimeEstimator()(estimate_mode_type="operator-level-cost-model")
        with pytest.raises(AssertionError, match="No FakeTensorMode found"), estimating:
            model(x)
    with FakeTensorMode():
        model, x = torch.nn.Linear(3, 4), torch.ones(2, 3)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            model(x).sum().backward()
        (found,) = tracker.get_tracker_snapshot("peak").values()
        assert found["Total"] > 0

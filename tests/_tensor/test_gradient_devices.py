"""Gradients on another device, or of another type, are refused or moved as in eager mode.

``worker_refused_devices`` compares the same programs with torch's own CUDA backend; the texts here
are its answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests._tensor.worker_refused_devices import gradients, outcome
from torchfake import deferred_mode, fake_like, fake_mode


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


INVALID = "RuntimeError: invalid gradient at index {} - expected device {} but got {}"
CHANGED = "hook '<lambda>' has changed the"
KINDS = {"cpu": "torch.FloatTensor", "cuda": "torch.cuda.FloatTensor"}
DOUBLES = {"cpu": "torch.DoubleTensor", "cuda": "torch.cuda.DoubleTensor"}
NAMES = {"cpu": "cpu", "cuda": "cuda:0"}


def expected(here: str, there: str) -> dict[str, Any]:
    own, other = NAMES[here], NAMES[there]
    invalid, accepted = INVALID.format(0, own, other), (own, "torch.float32", [2, 3])
    size = "grad_output[0] has a shape of torch.Size([3]) and output[0] has a shape of torch.Size"
    return {
        "assigned": f"RuntimeError: attempting to assign a gradient with device type '{there}' to a"
        f" tensor with device type '{here}'. Please ensure that the gradient and the tensor are on "
        "the same device",
        "assigned with another size": "RuntimeError: attempting to assign a gradient of size '[3]' "
        "to a tensor of size '[2, 3]'. Please ensure that the gradient and the tensor are the same "
        "size",
        "backward": invalid,
        "backward of an edge": invalid,
        "backward in another dtype": accepted,
        "backward with another size": f"RuntimeError: Mismatch in shape: {size}([2, 3]).",
        "backward of a number": accepted,
        "grad": invalid,
        "second grad": INVALID.format(1, own, other),
        "function": "RuntimeError: Function MovesBackward returned an "
        + invalid.removeprefix("RuntimeError: "),
        "hook": f"RuntimeError: {CHANGED} type of value (was {KINDS[here]} got {KINDS[there]})",
        "hook in another dtype": f"RuntimeError: {CHANGED} type of value (was {KINDS[here]} got "
        f"{DOUBLES[here]})",
        "hook with another size": f"RuntimeError: {CHANGED} size of value",
    }


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_gradients_are_where_their_tensors_are(here: str, there: str) -> None:
    for name, program in gradients(here, there).items():
        text = expected(here, there).get(name.removesuffix(f" on {here}"))
        assert text is None or outcome(program) == text, name


def test_after_the_mode() -> None:
    x = fake_like(torch.ones(3)).to("cuda:1").requires_grad_()
    for grad in (torch.ones(3), fake_like(torch.ones(3)).to("cuda")):
        with pytest.raises(RuntimeError, match="expected device cuda:1 but got c"):
            (x * 2).backward(grad)
    with pytest.raises(RuntimeError, match=r"with index '0' to a tensor located .* index '1'"):
        x.grad = fake_like(torch.ones(3)).to("cuda")
    (x * 2).backward(fake_like(torch.ones(3)).to("cuda:1"))
    assert x.grad.device == torch.device("cuda:1")  # type: ignore[union-attr]

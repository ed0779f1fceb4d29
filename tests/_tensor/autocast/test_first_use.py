"""autocast stays on behind what runs when the first fake is made, and behind switches in it."""

import subprocess
import sys

import torch

from tests._tensor.conftest import BF16, F32
from torchfake import fake_mode
from torchfake._torch import dispatcher

FIRST_BLOCK = """
import torch
from torchfake import fake_mode
with fake_mode(fake_cuda=True), torch.autocast("cpu"), torch.autocast("cuda"):
    for device in ("cpu", "cuda"):
        x = torch.randn(3, 3, device=device)
        print((x @ x).dtype, torch.nn.Linear(3, 3, device=device)(x).dtype)
"""


def test_the_first_fake_of_a_process_is_made_inside_autocast() -> None:
    command = [sys.executable, "-c", FIRST_BLOCK]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["torch.bfloat16"] * 2 + ["torch.float16"] * 2


def test_a_switch_where_autocast_is_hidden_leaves_it_on() -> None:
    with fake_mode(), torch.autocast("cpu"):
        x = torch.randn(3, 3)
        with dispatcher.no_interception():
            with torch.autocast("cpu", enabled=False):
                pass
            with fake_mode():
                pass
        found = (x @ x).dtype
    assert (found, (x @ x).dtype) == (BF16, F32)

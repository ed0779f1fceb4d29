"""Tries torchfake where it is installed alone: ``python -I smoke.py``, from any folder.

Input: an environment with ``torchfake[hf]``. Output: lines of what worked; an AssertionError or an
exit code if something does not. Invariant: nothing of the repository is imported.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch

import torchfake
from torchfake import deferred_init, estimate, fake_mode, fit, materialize_module, plan, summary


def command(*arguments: str) -> str:
    """What the console script prints; it is beside the interpreter."""
    script = Path(sys.executable).with_name("torchfake")
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


version = importlib.metadata.version("torchfake")
assert torchfake.__version__ == version
assert command("--version") == f"torchfake {version}\n"
folder = Path(torchfake.__file__).parent
assert (folder / "py.typed").is_file()
assert "site-packages" in folder.parts
print(f"torchfake {version}, torch {torch.__version__}, Python {sys.version.split()[0]}")

words = ["--train", "--dtype", "bf16", "--seq", "2048", "--gpu", "a100-40gb,a100-80gb"]
shown = command("fit", "transformers:LlamaForCausalLM", *words)  # the first of README.md
assert shown.startswith("fits               yes, on 1 of 2 GPUs: a100-80gb; ")
print(shown.splitlines()[0])

with fake_mode(fake_cuda="h100-80gb"):
    net = torch.nn.Sequential(torch.nn.Linear(8192, 8192), torch.nn.ReLU()).cuda()
    net(torch.empty(4, 8192, device="cuda")).sum().backward()
assert net[0].weight.grad.device.type == "cuda"
assert summary(net).tree.size.num_parameters == 8192 * 8193
found = fit(estimate(net, input_size=(4, 8192), gpu="t4", optimizer="adamw"), "t4", vary=None)
assert found.fits
print(repr(found).splitlines()[0])

torch.manual_seed(0)
made = deferred_init(torch.nn.Linear, 64, 32)
materialize_module(made)
torch.manual_seed(0)
assert torch.equal(made.weight, torch.nn.Linear(64, 32).weight)
planned = plan(
    lambda: torch.nn.Linear(64, 64), mesh_shape=2, inputs=lambda: torch.empty(4, 64), device="cpu"
)
assert planned.of_rank(1).parameter_bytes == 4 * 64 * 65
print("deferred initialization and plans work")

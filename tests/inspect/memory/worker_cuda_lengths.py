"""Steps of several lengths, and passes of evaluation, on torch's own CUDA backend without a GPU:
what its allocator reserves against what ``estimate`` says. See ``worker_cuda_steps``.

    python -m tests.inspect.memory.worker_cuda_lengths            compare the cases
    ... worker_cuda_lengths --record                       write cuda_lengths.json for this torch
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.cuda_stand_in.build import run_with_cuda
from torchfake.inspect.allocator.replay import MAX_STEPS

RECORDED = Path(__file__).parent / "cuda_lengths.json"
BATCH = 4
SLACK_BYTES = 8192


class Case(NamedTuple):
    """Steps in order, each of one length, and the batch of an evaluation after them."""

    lengths: list[int]
    evaluation: int | None = None

    @property
    def name(self) -> str:
        after = "" if self.evaluation is None else f", evaluation of {self.evaluation}"
        return f"{self.lengths}{after}"


def _drawn(seed: int, number: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(32, 513) for _ in range(number)]


CASES = (
    Case([512]),
    Case([256, 512]),
    Case([512, 300, 444, 100, 387, 512, 211]),
    *(Case(_drawn(seed, 12)) for seed in range(4)),
    Case([512], 8),
    Case(_drawn(5, 6), 8),
    Case(_drawn(6, 6), 2),
)


class Text(nn.Module):
    """A small model of language whose activations are larger than its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8192, 256)
        self.blocks = nn.ModuleList(_block() for _ in range(4))
        self.head = nn.Linear(256, 8192, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def _block() -> nn.Module:
    inner = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)
    return nn.Sequential(nn.LayerNorm(256), *inner)


def mean_square(output: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is dense: cuBLAS would copy one that is expanded."""
    return output.square().mean()


def estimated(case: Case) -> list[int]:
    """Allocated and reserved bytes at their peaks, and reserved bytes at the end."""
    from torchfake import estimate

    ids = torch.zeros(BATCH, max(case.lengths), dtype=torch.long)
    found = estimate(
        Text(), ids, optimizer="adamw", loss=mean_square, gpu="a100-80gb", lengths=case.lengths,
        evaluation=case.evaluation,
    ).reserved  # fmt: skip
    assert found is not None
    return [found.peak_allocated_bytes, found.peak_reserved_bytes, found.last_reserved_bytes]


def run_on_cuda(case: Case) -> list[int]:
    """The same of a plain loop on CUDA."""
    model = Text().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(MAX_STEPS):
        for length in case.lengths:
            _train(model, optimizer, length)
        if case.evaluation is not None:
            _evaluate(model, torch.zeros(case.evaluation, max(case.lengths), dtype=torch.long))
    peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    return [*peaks, torch.cuda.memory_reserved()]


def _train(model: nn.Module, optimizer: Any, length: int) -> None:
    ids = torch.zeros(BATCH, length, dtype=torch.long).cuda()
    optimizer.zero_grad()
    output = model(ids)
    loss = mean_square(output)
    loss.backward()
    optimizer.step()


def _evaluate(model: nn.Module, ids: torch.Tensor) -> None:
    model.eval()
    with torch.no_grad():
        output = model(ids.cuda())
        mean_square(output)
    model.train()


def _worker() -> None:
    results: list[Any] = []
    for lengths, evaluation in json.load(sys.stdin):
        reader, writer = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writer, "w") as out:
                json.dump(run_on_cuda(Case(lengths, evaluation)), out)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as text:
            results.append(json.loads(text.read()))
        os.wait()
    json.dump(results, sys.stdout)


def _main() -> None:
    real = run_with_cuda("tests.inspect.memory.worker_cuda_lengths", CASES)
    if "--record" in sys.argv:
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        version = ".".join(torch.__version__.split(".")[:2])
        known[version] = {case.name: found for case, found in zip(CASES, real, strict=True)}
        RECORDED.write_text(re.sub(r"\n {3,}|\n  (?=\])", " ", json.dumps(known, indent=1)) + "\n")
        return
    ours = [estimated(case) for case in CASES]
    for case, there, here in zip(CASES, real, ours, strict=True):
        print(f"{case.name}: {there} on CUDA, {here} here")
    far = [abs(b[1] / a[1] - 1) for a, b in zip(real, ours, strict=True)]
    print(f"reserved equal in {far.count(0)} of {len(far)}, at most {max(far):.1%} apart")
    sys.exit(max(far) > 0.05)


if __name__ == "__main__":
    _worker() if "--worker" in sys.argv else _main()

"""What looking into a model costs: part of ``nox -s bench``, and ``--only-inspect`` alone.

The peer is ``torch.distributed._tools.MemTracker``, which follows storages too, under torch's
FakeTensorMode.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import measure
import models
import torchfake

LENGTH = 2048


def report(rounds: int) -> None:
    estimates(rounds)
    summaries(rounds)
    fits(rounds)
    page()


def inputs() -> dict[str, Any]:
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def plain_pass(model: Any, device: str) -> Callable[[], None]:
    """Forward and backward on fakes, nothing else."""
    with torchfake.fake_mode(fake_cuda=True):
        model = torchfake.fake_like(model, device=device)
        ids = torch.zeros(1, LENGTH, dtype=torch.long, device=device)

    def run() -> None:
        with torchfake.fake_mode(fake_cuda=True):
            model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    return run


def tracked(model: Any) -> int:
    """A training step under torch's own tracker; the bytes at its peak."""
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        model(**inputs()).loss.backward()
        optimizer.step()
        model.zero_grad()
    (found,) = (v["Total"] for v in tracker.get_tracker_snapshot("peak").values())
    return int(found)


def built_and_estimated() -> None:
    with torchfake.fake_mode():
        model = models.llama(num_layers=8)
    _ = torchfake.estimate(model, inputs(), optimizer="adamw").peak


def under_fake_tensor_mode() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracked(models.llama(num_layers=8))


def estimates(rounds: int) -> None:
    """Of a training step of the 80-layer Llama."""
    model = torchfake.deferred_init(models.llama)
    print("\nA training step of the 80-layer Llama with AdamW, 1 x 2048 tokens, seconds\n")
    print("| | fake forward and backward | estimate | ratio |\n|---|---|---|---|")
    for device in ("cpu", "cuda"):
        found = measure.interleaved(
            [
                ("plain", plain_pass(model, device)),
                (
                    "estimate",
                    lambda device=device: (
                        torchfake.estimate(  # type: ignore[misc]
                            model, inputs(), optimizer="adamw", device=device
                        ).peak
                    ),
                ),
            ],
            rounds,
        )
        plain, ours = found["plain"], found["estimate"]
        print(f"| {device} | {plain:.2f} | {ours:.2f} | {ours / plain:.2f} |", flush=True)
    found = measure.interleaved(
        [("ours", built_and_estimated), ("peer", under_fake_tensor_mode)], 1
    )
    print(f"\nWith 8 layers, construction included: {found['ours']:.2f} s; ", end="")
    print(f"MemTracker under FakeTensorMode: {found['peer']:.1f} s", flush=True)


def trillion() -> Any:
    """A mixture of experts, 62 layers of 384: the shape of the largest open models."""
    config = transformers.DeepseekV3Config(
        num_hidden_layers=62,
        n_routed_experts=384,
        hidden_size=7168,
        moe_intermediate_size=2048,
        num_attention_heads=64,
        num_key_value_heads=64,
        vocab_size=163840,
    )
    return transformers.DeepseekV3ForCausalLM(config)


def summaries(rounds: int) -> None:
    with torchfake.fake_mode():
        model = trillion()
        tokens = torch.zeros(1, 128, dtype=torch.long)
    count = sum(p.numel() for p in model.parameters())
    found = measure.interleaved(
        [
            ("alone", lambda: str(torchfake.summary(model))),
            ("run", lambda: str(torchfake.summary(model, {"input_ids": tokens}))),
        ],
        rounds,
    )
    print(f"\nSummary of {count / 1e12:.2f} trillion parameters, as text: ", end="")
    print(f"{found['alone']:.3f} s; with outputs and operations, {found['run']:.2f} s", flush=True)


def fits(rounds: int) -> None:
    model = torchfake.deferred_init(models.llama, 16)
    found = torchfake.estimate(model, inputs(), optimizer="adamw")
    seconds = measure.interleaved([("fit", lambda: torchfake.fit(found))], min(rounds, 3))["fit"]
    count = len(torchfake.profiles())
    print(f"\nThe largest batch on each of {count} GPUs, 16 layers: {seconds:.1f} s", flush=True)


def page() -> None:
    model = torchfake.deferred_init(models.llama)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.html"
        torchfake.report(model, inputs(), path, optimizer="adamw")
        print(f"\nThe HTML page of the 80-layer Llama: {os.path.getsize(path) / 1e6:.2f} MB")

"""What deferring costs, and making real: part of ``nox -s bench``, and ``--only-deferred``
alone."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import measure
import models
import torch

import torchfake
from torchfake._graph import history

FOLDER = os.path.dirname(os.path.abspath(__file__))


def report(rounds: int, *, eager: bool) -> None:
    recording(rounds)
    bytes_per_operation()
    if eager:
        materializing(min(rounds, 3))
        peak_memory()


def faked(build: Callable[[], Any]) -> Any:
    with torchfake.fake_mode():
        return build()


def recording(rounds: int) -> None:
    print("\nRecording, seconds\n")
    print("| | deferred_init | fake_mode | ratio |\n|---|---|---|---|")
    for name, build in {"Blenderbot": models.blenderbot, "Llama, 80 layers": models.llama}.items():
        found = measure.interleaved(
            [
                ("ours", lambda build=build: torchfake.deferred_init(build)),  # type: ignore[misc]
                ("fake", lambda build=build: faked(build)),  # type: ignore[misc]
            ],
            rounds,
        )
        ours, fake = found["ours"], found["fake"]
        print(f"| {name} | {ours:.3f} | {fake:.3f} | {ours / fake:.2f} |", flush=True)


def held(build: Callable[[], Any]) -> tuple[int, Any]:
    """The bytes of Python that a model holds, and the model."""
    gc.collect()
    tracemalloc.start()
    model = build()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size, model


def bytes_per_operation() -> None:
    """The record of the Llama, over the operations in it that are not dead."""
    torchfake.deferred_init(models.llama)
    fake, model = held(lambda: faked(models.llama))
    deferred, model = held(lambda: torchfake.deferred_init(models.llama))
    tensors = [*model.parameters(), *model.buffers()]
    contents = [t._fake_storage.recorded.contents.op for t in tensors]
    count = len(history(contents))
    print(f"\nBytes of record for each of {count} operations: {(deferred - fake) / count:,.0f}")


def materializing(rounds: int) -> None:
    print("\nMaking real, seconds; the Blenderbot with 7 layers, 2.9 GB\n")
    print("| | deferred_init and materialize_module | eager | ratio |\n|---|---|---|---|")
    contenders = {
        "Blenderbot": models.shallow_blenderbot,
        "20 Linear of 4,096": lambda: torch.nn.ModuleList(
            torch.nn.Linear(4096, 4096) for _ in range(20)
        ),
    }
    for name, build in contenders.items():
        found = measure.interleaved(
            [
                ("ours", lambda build=build: real(build)),  # type: ignore[misc]
                ("eager", build),
            ],
            rounds,
        )
        ours, eager = found["ours"], found["eager"]
        print(f"| {name} | {ours:.2f} | {eager:.2f} | {ours / eager:.2f} |", flush=True)


def real(build: Callable[[], Any]) -> Any:
    return torchfake.materialize_module(torchfake.deferred_init(build), progress=False)


def peak_memory() -> None:
    """Over the model's own bytes; its largest parameter is 0.105 GB."""
    body = (
        "m = torchfake.materialize_module(torchfake.deferred_init(models.shallow_blenderbot), "
        "progress=False)"
    )
    with torchfake.fake_mode():
        model = models.shallow_blenderbot()
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    ours = measure.peak_bytes(FOLDER, "tiny()", body)
    eager = measure.peak_bytes(FOLDER, "tiny()", "m = models.shallow_blenderbot()")
    print(
        f"\nPeak memory of making it real: {ours / 1e9:.2f} GB, eager {eager / 1e9:.2f}; the model "
        f"{sum(sizes) / 1e9:.2f}, its largest parameter {max(sizes) / 1e9:.2f}"
    )

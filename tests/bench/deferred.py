"""What deferring costs: part of ``nox -s bench``, and ``--only-deferred`` alone."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import measure
import models
import torchfake
from torchfake._graph.operations import dependencies


def report(rounds: int) -> None:
    recording(rounds)
    bytes_per_operation()


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
    contents = [t._fake_storage.deferred.contents.op for t in tensors]
    count = len(dependencies(contents))
    print(f"\nBytes of record for each of {count} operations: {(deferred - fake) / count:,.0f}")

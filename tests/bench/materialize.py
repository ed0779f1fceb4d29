"""Making deferred modules real, and writing them: part of ``nox -s bench``, and
``--only-materialize`` alone."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import measure
import models
import torchfake
from torchfake._replay import tile_loop

FOLDER = os.path.dirname(os.path.abspath(__file__))


def report(rounds: int) -> None:
    against_eager(min(rounds, 3))
    plain_threads(rounds)
    by_threads(min(rounds, 3))
    one_layer(min(rounds, 3))
    peak_memory()
    writing()


def linears() -> Any:
    return torch.nn.ModuleList(torch.nn.Linear(4096, 4096) for _ in range(20))


BUILDS: dict[str, Callable[[], Any]] = {
    "Blenderbot, 2.7 billion": models.blenderbot,
    "the same with 7 of 26 layers": models.shallow_blenderbot,
    "20 Linear of 4,096": linears,
}


def real(build: Callable[[], Any], threads: int | None = None) -> Any:
    module = torchfake.deferred_init(build)
    return torchfake.materialize_module(module, progress=False, threads=threads)


@contextlib.contextmanager
def seconds_in_kernels() -> Iterator[list[float]]:
    """Context: how long each kernel of torch took that wrote a tile, first touch included."""
    found: list[float] = []
    original = tile_loop.TileLoop._run_op

    def do(self: Any, *args: Any) -> None:
        start = time.perf_counter()
        original(self, *args)
        found.append(time.perf_counter() - start)

    tile_loop.TileLoop._run_op = do  # type: ignore[method-assign]
    try:
        yield found
    finally:
        tile_loop.TileLoop._run_op = original  # type: ignore[method-assign]


def against_eager(rounds: int) -> None:
    print("\nMaking real, seconds; with building, against eager construction\n")
    print("| | torchfake | eager | eager to torchfake | share in torch's kernels |")
    print("|---|---|---|---|---|")
    for name, build in BUILDS.items():
        shares: list[float] = []

        def ours(build: Any = build, shares: Any = shares) -> Any:
            with seconds_in_kernels() as found:
                start = time.perf_counter()
                module = real(build)
                wall = time.perf_counter() - start
            shares.append(sum(found) / wall / torch.get_num_threads())
            return module

        found = measure.interleaved([("ours", ours), ("eager", build)], rounds)
        share = statistics.median(shares[1:])
        print(
            f"| {name} | {found['ours']:.2f} | {found['eager']:.2f} | "
            f"{found['eager'] / found['ours']:.2f} | {share:.0%} |",
            flush=True,
        )


def plain_threads(rounds: int) -> None:
    """What the machine gives: threads that do nothing but fill 20 times 4,096 x 4,096."""

    def fill(tensors: list[torch.Tensor]) -> None:
        generator = torch.Generator()
        for i in range(len(tensors)):
            tensors[i] = torch.empty(4096, 4096)
            tensors[i].uniform_(generator=generator)

    def run(count: int) -> Any:
        lists = [[torch.empty(0)] * (20 // count) for _ in range(count)]
        threads = [threading.Thread(target=fill, args=(tensors,)) for tensors in lists]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return lists

    counts = (1, torch.get_num_threads())
    found = measure.interleaved([(str(n), lambda n=n: run(n)) for n in counts], rounds)  # type: ignore[misc]
    one, all_ = found.values()
    print(
        f"\nPlain threads that fill as much as the Linear: one {one:.2f} s, {counts[1]} "
        f"{all_:.2f} s: {one / all_:.2f}"
    )


def by_threads(rounds: int) -> None:
    counts = [n for n in (1, 2, 4, 8, 16) if n <= (os.cpu_count() or 1)]
    print("\nBy threads, seconds\n")
    print(f"| | {' | '.join(map(str, counts))} |\n|---|{'---|' * len(counts)}")
    for name in ("the same with 7 of 26 layers", "20 Linear of 4,096"):
        build = BUILDS[name]
        found = measure.interleaved(
            [(str(n), lambda n=n, build=build: real(build, n)) for n in counts],  # type: ignore[misc]
            rounds,
        )
        print(f"| {name} | {' | '.join(f'{s:.2f}' for s in found.values())} |", flush=True)


def one_layer(rounds: int) -> None:
    """Of the Llama with 80 layers, wherever it is; eager builds one alone."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = torchfake.deferred_init(models.llama, 1).config
    eager = []
    for _ in range(rounds + 1):
        gc.collect()
        start = time.perf_counter()
        LlamaDecoderLayer(config, 0)
        eager.append(time.perf_counter() - start)
    alone = statistics.median(eager[1:])
    print(f"\nOne layer of 80, seconds; eager builds one alone in {alone:.2f}\n")
    print("| layer | seconds | to eager |\n|---|---|---|")
    for i in (0, 40, 79):
        seconds = []
        for _ in range(rounds):
            layer = torchfake.deferred_init(models.llama).model.layers[i]
            start = time.perf_counter()
            torchfake.materialize_module(layer, progress=False)
            seconds.append(time.perf_counter() - start)
            del layer
            gc.collect()
        found = statistics.median(seconds)
        print(f"| {i} | {found:.2f} | {found / alone:.2f} |", flush=True)


def peak_memory() -> None:
    """Over the model's own bytes."""
    print("\nPeak memory, GB\n")
    print("| | model | torchfake | to the model | eager |\n|---|---|---|---|---|")
    for name, expression in {
        "Blenderbot": "models.blenderbot()",
        "Blenderbot, .to(bfloat16)": "models.blenderbot().to(torch.bfloat16)",
    }.items():
        with torchfake.fake_mode():
            model = eval(expression, {"models": models, "torch": torch})
        size = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
        body = (
            f"m = torchfake.materialize_module(torchfake.deferred_init(lambda: {expression}), "
            "progress=False)"
        )
        ours = measure.peak_bytes(FOLDER, "tiny()", body)
        eager = measure.peak_bytes(FOLDER, "tiny()", f"m = {expression}")
        print(
            f"| {name} | {size / 1e9:.2f} | {ours / 1e9:.2f} | {ours / size:.3f} | "
            f"{eager / 1e9:.2f} |",
            flush=True,
        )


_WRITING = """
import json, sys, tempfile, time
import torch, torchfake, transformers
transformers.logging.set_verbosity_error()
start = time.perf_counter()
torch.set_default_dtype(torch.bfloat16)
config = transformers.LlamaConfig(num_hidden_layers=38)
model = torchfake.deferred_init(transformers.LlamaForCausalLM, config)
size = sum(p.numel() * p.element_size() for p in model.parameters())
torchfake.save_materialized(model, sys.argv[1], progress=False)
seconds = time.perf_counter() - start
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps([size, seconds, peak]))
"""


def writing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _WRITING, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, seconds, peak = json.loads(done.stdout.splitlines()[-1])
    print(
        f"\nA Llama of {size / 1e9:.1f} GB in bfloat16, written in {seconds:.0f} s "
        f"({size / seconds / 1e6:.0f} MB/s); peak memory of the whole process {peak / 1e9:.2f} GB"
    )

"""``nox -s bench``: every figure of docs/performance.md, from one run.

Ratios are against ``torch.device("meta")``; FakeTensorMode and eager are in the same run.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import measure
import models
import torch
from torch._subclasses import FakeTensorMode

import torchfake

FOLDER = os.path.dirname(os.path.abspath(__file__))
OURS, META, THEIRS, EAGER = "torchfake", "meta", "FakeTensorMode", "eager"


def meta_mode() -> Any:
    return torch.device("meta")


def under(context: Callable[[], Any], build: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with context():
            return build()

    return run


CONTEXTS = {OURS: torchfake.fake_mode, META: meta_mode, THEIRS: FakeTensorMode}


def header(title: str, unit: str) -> None:
    print(f"\n{title}, {unit}\n")
    print(f"| | {OURS} | {META} | {THEIRS} | {EAGER} | to meta | to FakeTensorMode |")
    print("|---|---|---|---|---|---|---|")


def row(name: str, found: dict[str, float], digits: int) -> None:
    cells = [f"{found[c]:.{digits}f}" if c in found else "" for c in (OURS, META, THEIRS, EAGER)]
    ratios = [f"{found[OURS] / found[c]:.2f}" if c in found else "" for c in (META, THEIRS)]
    print(f"| {name} | {' | '.join([*cells, *ratios])} |", flush=True)


def construction(rounds: int, *, eager: bool) -> None:
    header("Construction", "seconds")
    for name, build in (
        ("Blenderbot, 2.7 billion", models.blenderbot),
        ("Llama, 80 layers", models.llama),
    ):
        found = measure.interleaved([(c, under(f, build)) for c, f in CONTEXTS.items()], rounds)
        if eager and build is models.blenderbot:
            found[EAGER] = measure.interleaved([(EAGER, build)], 1)[EAGER]
        row(name, found, 3)


OPS: dict[str, Callable[[Any], Any]] = {
    "empty": lambda x: torch.empty(64, 64),
    "add": lambda x: x + x,
    "matmul": lambda x: x @ x,
    "view": lambda x: x.view(4096),
    "relu": lambda x: torch.relu(x),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "softmax": lambda x: torch.softmax(x, -1),
}


def single_ops(rounds: int) -> None:
    header("Single operations on 64 x 64", "microseconds")
    for name, op in OPS.items():
        found = {}
        for contender, context in {**CONTEXTS, EAGER: torch.no_grad}.items():
            with context():
                x = torch.empty(64, 64)
                found[contender] = measure.per_call(functools.partial(op, x), rounds, 200)
        row(name, found, 1)


def forward_backward(rounds: int) -> None:
    header("Forward and backward, Llama of 80 layers, 1 x 2048 tokens", "seconds")
    contenders = []
    theirs = FakeTensorMode()  # its tensors belong to one instance
    for name, context in {**CONTEXTS, THEIRS: lambda: theirs}.items():
        with context():
            model = models.llama()
            tokens = torch.empty(1, 2048, dtype=torch.int64)
        contenders.append((name, under(context, functools.partial(step, model, tokens))))
    row("forward and backward", measure.interleaved(contenders, rounds), 3)


def step(model: Any, tokens: Any) -> None:
    """The model's own layers by hand: its forward reads a mask's values, which meta cannot."""
    base = model.model
    hidden = base.embed_tokens(tokens)
    positions = torch.arange(tokens.shape[1], device=hidden.device).unsqueeze(0)
    rotary = base.rotary_emb(hidden, positions)
    for layer in base.layers:
        hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
    model.lm_head(base.norm(hidden)).sum().backward()
    model.zero_grad()


def peak_memory(*, eager: bool) -> None:
    print("\nPeak memory of construction, MB over the process that has imported all\n")
    print(f"| | {OURS} | {META} | {EAGER} |\n|---|---|---|---|")
    contexts = {OURS: "torchfake.fake_mode()", META: 'torch.device("meta")'}
    for model in ("blenderbot", "llama"):
        cells = [
            measure.peak_bytes(FOLDER, "tiny()", f"with {c}:\n    m = models.{model}()")
            for c in contexts.values()
        ]
        if eager and model == "blenderbot":
            cells.append(measure.peak_bytes(FOLDER, "tiny()", f"m = models.{model}()"))
        print(f"| {model} | {' | '.join(f'{c / 1e6:,.0f}' for c in cells)} |", flush=True)


def import_time() -> None:
    code = (
        "import time, torch; start = time.perf_counter(); import torchfake;"
        "print(time.perf_counter() - start)"
    )
    runs = [os.popen(f'"{sys.executable}" -c "{code}"').read() for _ in range(7)]
    print(f"\n`import torchfake` after `import torch`: {sorted(map(float, runs))[3]:.3f} s")


def machine() -> str:
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {torch.get_num_threads()} threads"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs behind each median")
    parser.add_argument("--no-eager", action="store_true", help="leave out what takes 11 GB")
    options = parser.parse_args()
    print(machine())
    import_time()
    construction(options.rounds, eager=not options.no_eager)
    single_ops(options.rounds)
    forward_backward(options.rounds)
    peak_memory(eager=not options.no_eager)


if __name__ == "__main__":
    main()

"""Ranks that are not as the others are named before any weight is made; none waits for ever."""

from __future__ import annotations

import re

from launch import on_their_own, torchrun

VALUES = "of other values: another seed, other draws before it, or changed otherwise since"
DIFFERENT = {
    "seed:2": ("rank 2", f"embed.weight is {VALUES}"),
    "draw:0": ("rank 0", f"embed.weight is {VALUES}"),
    "edit:1": ("rank 1", f"layers.1.down.bias is {VALUES}"),
    "width:1": ("rank 1", r"embed.weight is float32\[112, 52\] there and float32\[112, 48\]"),
    "layers:2": ("rank 2", "layers.1.norm.weight is missing"),
}


def test_ranks_that_differ_are_named() -> None:
    done = torchrun("worker_failures.py", 3, "same:0", "otherwise:1", *DIFFERENT)
    for name in ("same", "part", "rounded", "turned"):
        ranks = sorted(re.findall(rf"{name}: (\d)", done.stdout))
        assert ranks == ["0", "1", "2"], (name, done.stderr[-3000:])
    for case, (who, what) in DIFFERENT.items():
        name = case.split(":")[0]
        lines = re.findall(rf"{name}: (\d): ([^\n]*?Nothing was made)", done.stdout)
        assert sorted(rank for rank, _ in lines) == ["0", "1", "2"], done.stderr[-3000:]
        (message,) = {message for _, message in lines}
        assert re.match(f"{who} recorded another program than rank .*{what}", message), message


def test_a_rank_that_dies() -> None:
    """The others get an error from the process group, within its timeout."""
    lines = on_their_own("worker_failures.py", 3, "dies:1")
    assert not lines[1]
    for rank in (0, 2):
        assert re.match(rf"dies: {rank}: (RuntimeError|DistBackendError)", lines[rank])

"""Run every program in modes, leave them, and look for fakes in all that is alive.

``python -m tests.leftovers.worker_leftovers [PART OF A NAME]``. Each program is run in each mode;
then outside, where its results have to be real. What it keeps on purpose is in EXPLAINED.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.leftovers import library_programs, torch_programs
from tests.leftovers.scan import leftovers
from torchfake import deferred_mode, fake_mode, is_fake

MODES: dict[str, Callable[[], Any]] = {
    "fake": fake_mode,
    "typical": lambda: fake_mode(answer="typical"),
    "fake_cuda": lambda: fake_mode(fake_cuda=True, answer="typical"),
    "deferred": deferred_mode,
}
EXPLAINED = {"snntorch.Leaky": "SpikingNeuron.instances lists every neuron that was ever made"}
"""Programs that keep a fake, and why that is theirs."""


def error_in(mode: Callable[[], Any], program: torch_programs.Program) -> str | None:
    """Run a program in a mode and drop its results; the error that it ends in, if it does."""
    try:
        with mode():
            program()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return None


def outside(program: torch_programs.Program) -> list[str]:
    """What is wrong with the results of a program outside of modes."""
    try:
        found = [leaf for leaf in pytree.tree_leaves(program()) if isinstance(leaf, torch.Tensor)]
    except Exception as error:
        return [f"outside: {type(error).__name__}: {str(error).splitlines()[:1]}"]
    return [f"outside: a fake of shape {tuple(leaf.shape)}" for leaf in found if is_fake(leaf)]


def main(part: str = "") -> int:
    counts: Counter[str] = Counter()
    failed = 0
    every = [*torch_programs.programs(), *library_programs.programs()]
    every.sort(key=lambda each: each[0] in EXPLAINED)  # what they keep is found ever after
    for name, program in (each for each in every if part in each[0]):
        for mode, make in MODES.items():
            error = error_in(make, program)
            counts[f"{mode}: {'refused' if error else 'ran'}"] += 1
            if error:
                print(f"refused {name} in {mode}: {error}")
            found = leftovers()
            if mode == "deferred":
                found += outside(program)
            if found and name in EXPLAINED:
                print(f"explained {name} in {mode}: {EXPLAINED[name]}")
            elif found:
                failed += 1
                print(f"FAILED {name} in {mode}:", *found[:3], sep="\n    ")
                _forget()
    print(dict(counts), f"{failed} failed; not installed: {library_programs.not_installed()}")
    return failed


def _forget() -> None:
    """What a program has left is not found again."""
    torch.compiler.reset()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(bool(main(*sys.argv[1:])))

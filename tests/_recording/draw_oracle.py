"""The oracle of draws that eager may refuse: inside ``try``, between other draws, as in eager.

Run as a module, it goes through all cases of :mod:`tests._recording.draws` and prints what differs.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any, NamedTuple

import torch

from tests._recording.draws import Case, Draw, all_draws, cases
from tests.oracle import bits
from torchfake import deferred_mode, is_deferred, materialize_tensor

DRAWS: dict[str, Draw] = all_draws()


class Outcome(NamedTuple):
    """What a program with one draw of a case in it leaves."""

    error: str | None  # the type of what the draw raised
    tensors: list[torch.Tensor]  # drawn before and after it, what it wrote, what it gave
    states: list[torch.Tensor]  # of the default generator, and of the one that was passed


def run(case: Case) -> Outcome:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5) if case.has_generator else None
    before = torch.randn(4, generator=generator)
    target = torch.ones(case.shape).to(case.dtype)
    error, result = None, None
    try:
        result = DRAWS[case.name](target, generator)
    except Exception as raised:
        error = type(raised).__name__
    after = [torch.randn(7, generator=generator), torch.rand(3)]
    results = result if isinstance(result, (list, tuple)) else [result]
    drawn = [t for t in results if isinstance(t, torch.Tensor)]
    states = [] if generator is None else [generator.get_state()]
    return Outcome(error, [before, *after, target, *drawn], states)


def difference(case: Case) -> str | None:
    """What a deferred run of `case` does otherwise than eager; None if nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bounds that a dtype cannot represent, resized outputs
        eager = run(case)
        eager.states.append(torch.get_rng_state())
        with deferred_mode():
            deferred = run(case)
        deferred.states.append(torch.get_rng_state())
        if eager.error != deferred.error:
            return f"raises {deferred.error}, not {eager.error}"
        if not all(map(torch.equal, eager.states, deferred.states)):
            return "a generator is elsewhere"
        made = [materialize_tensor(t) if is_deferred(t) else t for t in deferred.tensors]
    if [*map(_described, eager.tensors)] != [*map(_described, made)]:
        return "other bits or metadata"
    return None


def _described(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride(), bits(tensor)


def main() -> int:
    torch.set_num_threads(1)
    tried, failed = 0, Counter[str]()
    for case in cases():
        found = difference(case)
        tried += 1
        if found is not None:
            failed[case.name] += 1
            print(*case, found)
    print(f"{tried} cases, {failed.total()} differ {dict(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

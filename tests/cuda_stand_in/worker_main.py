"""The main program of a worker that compares fake CUDA with torch's own backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.cuda_stand_in.build import run_with_cuda
from torchfake import fake_mode


def compare_with_cuda(
    module: str, run: Callable[[], dict[str, Any]], told: Callable[[Any], Any] = lambda found: found
) -> None:
    """The main program of a worker that runs the same on CUDA and on fake CUDA: print what differs,
    and exit with 1 if anything does.

    Args:
        module: the worker's.
        run: the results by name.
        told: the part of a result that is compared.
    """
    if "--worker" in sys.argv:
        json.load(sys.stdin)
        print(json.dumps(run()))
        return
    real = run_with_cuda(module, [])
    with fake_mode(fake_cuda=True):
        ours = json.loads(json.dumps(run()))
    different = [name for name in real if told(real[name]) != told(ours[name])]
    for name in different:
        print(name, "CUDA:", real[name], "here:", ours[name])
    print(f"{len(real)} cases, {len(different)} differ")
    sys.exit(bool(different))

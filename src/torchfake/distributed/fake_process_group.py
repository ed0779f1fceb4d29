"""A process group in which this process is one simulated rank of many.

Input: a rank and a number of ranks. Output: a context in which torch.distributed is initialised
with torch's fake backend. Invariant: however the context is left, torch.distributed is afterwards
as it was before: not initialised. Called by: ``distributed/plan``, which checks first, and
``distributed/run_rank``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

from torchfake._torch import distributed
from torchfake.errors import InputsError, MissingExtraError


def check_no_process_group() -> None:
    """Check that a process group can be initialised.

    Raises:
        MissingExtraError: if torch was built without torch.distributed.
        InputsError: if one is initialised: only its owner may destroy it.
    """
    if not torch.distributed.is_available():
        raise MissingExtraError(
            "this torch was built without torch.distributed, which plan needs: pip install torch"
        )
    if torch.distributed.is_initialized():
        backend, size = torch.distributed.get_backend(), torch.distributed.get_world_size()
        raise InputsError(
            f"a process group is initialised in this process ({backend}, {size} ranks), and plan "
            "needs one of its own: call it before init_process_group, after "
            "destroy_process_group, or in another process"
        )


@contextlib.contextmanager
def simulated_rank(rank: int, world_size: int) -> Iterator[None]:
    """Context in which this process is `rank` of `world_size`; nothing is sent."""
    hook = sys.excepthook  # init_process_group replaces it, and does not restore it
    with distributed.isolated_dtensor_state():
        try:
            torch.distributed.init_process_group("fake", rank=rank, world_size=world_size)
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            sys.excepthook = hook

"""A process group of one process that takes itself for one rank of many.

Enters: a rank and a number of ranks. Leaves: torch.distributed initialised so, for a while.
Invariant: however the context is left, torch.distributed is as it was: not initialised.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

from torchfake import _private_distributed as _private
from torchfake.errors import InputsError, MissingExtraError


def check_free() -> None:
    """Raise unless this process can take itself for a rank.

    Raises:
        MissingExtraError: if torch was built without torch.distributed.
        InputsError: if a process group is initialised, which is nobody's to end but its owner's.
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
def as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Context in which this process is `rank` of `world_size`; nothing is ever sent."""
    hook = sys.excepthook  # init_process_group puts one of its own before it, for good
    with _private.dtensor_state():
        try:
            torch.distributed.init_process_group("fake", rank=rank, world_size=world_size)
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            sys.excepthook = hook

"""A process group in which this process is one simulated rank of many.

Input: a rank and a number of ranks. Output: a context in which torch.distributed is initialized
with torch's fake backend. Invariant: however the context is left, torch.distributed is afterwards
not initialized, as before.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from torchfake._torch.distributed import dtensors
from torchfake.errors import InputsError, MissingExtraError
from torchfake.observe import Restoring


def check_no_process_group() -> None:
    """Check that a process group can be initialized.

    Raises:
        MissingExtraError: if torch was built without torch.distributed.
        InputsError: if a process group is already initialized: only its owner may destroy it.
    """
    if not torch.distributed.is_available():
        raise MissingExtraError(
            "this torch was built without torch.distributed, which plan needs: pip install torch"
        )
    if torch.distributed.is_initialized():
        backend, size = torch.distributed.get_backend(), torch.distributed.get_world_size()
        raise InputsError(
            f"a process group is initialized in this process ({backend}, {size} ranks), and plan "
            "needs one of its own: call it before init_process_group, after "
            "destroy_process_group, or in another process"
        )


class simulated_rank(Restoring):
    """Context in which this process is `rank` of `world_size`; nothing is sent."""

    _hook: Any = None

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._dtensor_state = dtensors.isolated_dtensor_state()

    def change(self) -> None:
        self._hook = sys.excepthook  # init_process_group replaces it, and does not restore it
        self._dtensor_state.change()
        torch.distributed.init_process_group("fake", rank=self._rank, world_size=self._world_size)

    def restore(self) -> None:
        if self._hook is None:
            return
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        sys.excepthook = self._hook
        self._dtensor_state.restore()

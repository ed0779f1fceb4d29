"""``torch.nn.parallel`` between fake devices, which is refused.

Input: functions of torch that ``nn.DataParallel`` copies with. Output: versions that raise an error
in a mode with a fake machine. Invariant: outside such a mode, or on another thread, each is the
original.

They are functions of CUDA's, which a build for the CPU lacks; and torch would keep the streams that
it copies on.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import _functions, comm

from torchfake._core import devices
from torchfake._patches.patch import Patch, replacing
from torchfake.errors import UnsupportedOpError


@replacing
def _refused(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not devices.names_any_device():
        return original(*args, **kwargs)
    raise UnsupportedOpError(
        "nn.DataParallel and torch.nn.parallel copy between devices by functions of CUDA's, "
        "which fake devices do not have. Run the module inside, model.module, on one device "
        "(as torchfake.estimate does), or plan DistributedDataParallel with torchfake.plan"
    )


PATCHES = [
    Patch(_functions, "_get_stream", _refused),
    *(
        Patch(comm, name, _refused)
        for name in ("scatter", "gather", "broadcast", "broadcast_coalesced")
    ),
]

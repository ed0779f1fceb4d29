"""Run on four ranks: real steps, every storage and message counted.

Its arguments are a folder, into which each rank writes what it has counted, and names of cases.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tests.distributed.sharded_models import CASES, Case, inputs
from tests.inspect.memory.memory_oracle import LiveStorages

PAYLOADS = {
    "_allgather_base_": ("all_gather", lambda args: args[0].nbytes),
    "_reduce_scatter_base_": ("reduce_scatter", lambda args: args[1].nbytes),
    "allreduce_": ("all_reduce", lambda args: sum(t.nbytes for t in args[0])),
    "all_reduce": ("all_reduce", lambda args: args[0].nbytes),
    "all_gather_into_tensor": ("all_gather", lambda args: args[0].nbytes * args[1]),
    "reduce_scatter_tensor": ("reduce_scatter", lambda args: args[0].nbytes),
    "all_to_all_single": ("permute", lambda args: args[0].nbytes),
    "alltoall_base_": ("all_to_all", lambda args: args[1].nbytes),
    "broadcast": ("broadcast", lambda args: args[0].nbytes),
    "send": ("send", lambda args: sum(t.nbytes for t in args[0])),
    "recv_": ("recv", lambda args: sum(t.nbytes for t in args[0])),
    "allgather_": ("all_gather", lambda args: sum(t.nbytes for t in args[0][0])),
    "broadcast_": ("broadcast", lambda args: sum(t.nbytes for t in args[0])),
}


POINT_TO_POINT = ("send", "recv_")
NO_MESSAGES = ("wait_tensor", "_wrap_tensor_autograd")


class Counting(LiveStorages):
    """Bytes of the storages that are alive, and of the messages, of this process alone.

    A higher-order operator counts as one: by what it returns.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(cls, DTensor) or "Async" in cls.__name__ for cls in types):
            return NotImplemented
        self.begin()
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._saw_all(func, args, func(*args, **(kwargs or {})), sys._getframe(1))
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and name not in NO_MESSAGES:
            collective, payload = PAYLOADS[name]
            if name == "all_to_all_single" and sum(map(bool, args[2])) > 1:
                collective = "all_to_all"
            sums = self.messages.setdefault(collective, [0, 0])
            sums[0] += 1
            sums[1] += payload(args)
        result = func(*args, **(kwargs or {}))
        settle(func, result)
        return self._saw_all(func, args, result, sys._getframe(1))

    def _saw_all(self, func: Any, args: Any, result: Any, frame: Any) -> Any:
        plain = (torch.Tensor, torch.nn.Parameter)
        made = [t for t in pytree.tree_leaves(result) if type(t) in plain]
        if func is torch.ops.aten.split.Tensor:  # gloo reduces a copy of its own, and splits that
            made = [t for t in made if t.untyped_storage()._cdata in self._alive]
        self.end(func, args, made, frame)
        return result


def settle(func: Any, result: Any) -> None:
    """Wait until gloo's thread has let go of what it sent, which it does a little late."""
    if func.overloadpacket.__name__ in POINT_TO_POINT:
        return  # the other rank may not be there yet
    if func.namespace == "c10d":
        work = result[-1] if isinstance(result, (list, tuple)) else result
        dist.Work.unbox(work).wait()
    if func.namespace == "c10d" or func.overloadpacket.__name__ == "wait_tensor":
        time.sleep(0.002)


def locals_of(tensors: Any) -> list[torch.Tensor]:
    return [t._local_tensor if isinstance(t, DTensor) else t for t in tensors if t is not None]


def sum_bytes(tensors: Any) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in locals_of(tensors)}
    return sum(storage.nbytes() for storage in storages.values())


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    own = getattr(optimizer, "optim", optimizer)  # of ZeRO: the part of this rank
    return [t for state in own.state.values() for t in state.values() if torch.is_tensor(t)]


@contextlib.contextmanager
def counting_resizes(counting: Counting) -> Iterator[None]:
    """Context in which storages that FSDP resizes are counted anew."""
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        original(storage, size)
        if storage._cdata in counting._alive:
            counting.observe(storage)
        return storage

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]


def counted(case: Case) -> dict[str, Any]:
    names = case.names or ("dp", "tp")[: len(case.shape)]
    mesh = init_device_mesh("cpu", case.shape, mesh_dim_names=names)
    counting, model = Counting(), case.build()
    with counting_resizes(counting), counting if case.counts_all else contextlib.nullcontext():
        model = case.parallelize(model, mesh) or model
    gc.collect()  # what it leaves in cycles
    make = case.optimizer
    optimizer = (getattr(torch.optim, make) if isinstance(make, str) else make)(model.parameters())
    with counting:
        given = (case.inputs or inputs)()
    axes = {name: mesh[name] for name in names}  # each look-up makes a mesh, of tensors
    for tensor in locals_of([*model.parameters(), *model.buffers()]):
        counting.observe(tensor.untyped_storage())

    def step() -> None:
        model.zero_grad(set_to_none=not case.keep_gradients)
        for _ in range(case.accumulate):
            with case.context(axes, given) if case.context else contextlib.nullcontext():
                with torch.autocast("cpu", case.autocast, enabled=case.autocast is not None):
                    output = model(**given)
                    loss = output.sum() if torch.is_tensor(output) else output.loss
                loss = loss if case.accumulate == 1 else loss / case.accumulate
                loss.backward()
        optimizer.step()

    with counting_resizes(counting), counting:
        counting.peak_bytes, counting.messages = 0, {}
        step()
        first, counting.peak_bytes, counting.messages = counting.peak_bytes, 0, {}
        step()
    return {
        "parameters": sum_bytes(model.parameters()),
        "gradients": sum_bytes(p.grad for p in model.parameters()),
        "optimizer state": sum_bytes(state_of(optimizer)),
        "first peak": first,
        "peak": counting.peak_bytes,
        "messages": counting.messages,
    }


def count(folder: str, cases: dict[str, Case]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: counted(case) for name, case in cases.items()}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))


def main(folder: str, *names: str) -> None:
    count(folder, {name: CASES[name] for name in names})

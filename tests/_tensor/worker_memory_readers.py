"""Runs what reads memory past the dispatcher on fakes, in a process of its own: it may crash.

Output: for each probe and kind of tensor, a line of JSON before it runs, and one with its outcome.
"""

from __future__ import annotations

import copy
import ctypes
import io
import json
import pickle
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, is_deferred, materialize_tensor

warnings.simplefilter("ignore")
FOLDER = Path(tempfile.mkdtemp())
NUM_BYTES = 24
Probe = Callable[[torch.Tensor], Any]


def pointer(t: Any) -> Any:
    return ctypes.cast(t.data_ptr(), ctypes.POINTER(ctypes.c_float))


def of_library(use: Callable[[Any, torch.Tensor], Any], name: str) -> Probe:
    def probe(t: torch.Tensor) -> Any:
        library = __import__(name, fromlist=["x"])
        return use(library, t)

    return probe


def saved_safetensors(library: Any, t: torch.Tensor) -> Any:
    library.save_file({"a": t, "b": t.clone()}, FOLDER / "a.safetensors")
    return (FOLDER / "a.safetensors").read_bytes()


class Tied(nn.Module):
    def __init__(self, t: torch.Tensor) -> None:
        super().__init__()
        self.one = nn.Parameter(t)
        self.same = self.one
        self.register_buffer("table", t.detach() * 2)


def saved_model(library: Any, t: torch.Tensor) -> Any:
    library.save_model(Tied(t), FOLDER / "m.safetensors")
    return (FOLDER / "m.safetensors").read_bytes()


def saved_pretrained(library: Any, t: torch.Tensor) -> Any:
    config = library.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    with making():
        torch.manual_seed(0)
        model = library.GPT2LMHeadModel(config)
    model.save_pretrained(FOLDER / "p")
    return (FOLDER / "p" / "model.safetensors").read_bytes()


def reduced(t: torch.Tensor, direct: bool) -> Any:
    import torch.distributed as dist

    if not dist.is_initialized():
        store = dist.FileStore(str(FOLDER / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    if direct:
        group: Any = dist.distributed_c10d._get_default_group()
        group._get_backend(torch.device("cpu")).allreduce([t]).wait()
    else:
        dist.all_reduce(t)
    return t


def stepped(t: torch.Tensor) -> torch.Tensor:
    step = torch.ones(())
    state = [torch.zeros(6), torch.zeros(6)]
    torch._fused_adamw_(
        [t], [torch.ones(6)], [state[0]], [state[1]], [], [step], lr=0.1, beta1=0.9, beta2=0.99,
        weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return t


def shared_by_forking(t: torch.Tensor) -> Any:
    from torch.multiprocessing.reductions import ForkingPickler

    return pickle.loads(bytes(ForkingPickler.dumps(t)))


def saved(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer)


def written(t: torch.Tensor) -> Any:
    with open(FOLDER / "written", "wb") as file:
        t.untyped_storage()._write_file(file, False, True, 1)
    return (FOLDER / "written").read_bytes()


def checkpointed(t: torch.Tensor) -> Any:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": t}, checkpoint_id=str(FOLDER / "dcp"), no_dist=True)
    loaded = {"a": torch.zeros(6)}
    dcp.load(loaded, checkpoint_id=str(FOLDER / "dcp"), no_dist=True)
    return loaded["a"]


PROBES: dict[str, Probe] = {
    "numpy": lambda t: t.numpy().tolist(),
    "np.asarray": lambda t: np.asarray(t).tolist(),
    "np.array": lambda t: np.array(t).tolist(),
    "np.array of a list": lambda t: np.array([t, t]).tolist(),
    "ufunc": lambda t: np.add(t.numpy(), 1).tolist(),
    "np.from_dlpack": lambda t: np.from_dlpack(t).tolist(),  # type: ignore[arg-type]
    "array interface": lambda t: np.asarray(
        type(
            "A",
            (),
            {
                "__array_interface__": {
                    "data": (t.data_ptr(), False),
                    "shape": (6,),
                    "typestr": "<f4",
                    "version": 3,
                }
            },
        )()
    ).tolist(),
    "memoryview": lambda t: memoryview(t.numpy()).tolist(),
    "memoryview of the tensor": lambda t: memoryview(t),  # type: ignore[arg-type]
    "bytes": lambda t: bytes(t.numpy().tobytes()),
    "to_dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "_to_dlpack": lambda t: torch._C._from_dlpack(torch._C._to_dlpack(t)),
    "from_dlpack": torch.from_dlpack,
    "string_at": lambda t: ctypes.string_at(t.data_ptr(), NUM_BYTES),
    "cast": lambda t: pointer(t)[2],
    "from_address": lambda t: list((ctypes.c_float * 6).from_address(t.data_ptr())),
    "void pointer": lambda t: ctypes.string_at(ctypes.c_void_p(t.data_ptr()), NUM_BYTES),
    "address of the storage": lambda t: ctypes.string_at(t.untyped_storage().data_ptr(), NUM_BYTES),
    "address of storage()": lambda t: ctypes.string_at(t.storage().data_ptr(), NUM_BYTES),
    "address of a view": lambda t: ctypes.string_at(t[2:].data_ptr(), 8),
    "memmove": lambda t: (ctypes.memmove(t.data_ptr(), b"\0" * 8, 8), t)[1],
    "C++ address": lambda t: torch._C.TensorBase.data_ptr(t) != 0,
    "C++ tolist": lambda t: torch._C.TensorBase.tolist(t),
    "C++ numpy": lambda t: torch._C.TensorBase.numpy(t).tolist(),
    "safetensors save": of_library(lambda lib, t: lib.save({"a": t}), "safetensors.torch"),
    "safetensors save_file": of_library(saved_safetensors, "safetensors.torch"),
    "safetensors save_model": of_library(saved_model, "safetensors.torch"),
    "save_pretrained": of_library(saved_pretrained, "transformers"),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "torch.save": saved,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "forking pickler": shared_by_forking,
    "share_memory_": lambda t: t.share_memory_(),
    "file descriptor": lambda t: len(t.untyped_storage()._share_fd_cpu_()),
    "shared file": lambda t: len(t.untyped_storage()._share_filename_cpu_()),
    "_write_file": written,
    "checkpoint": checkpointed,
    "collate": lambda t: torch.utils.data.default_collate([t, t]),
    "collate of numbers": lambda t: torch.utils.data.default_convert({"a": [t, 1]})["a"][0],
    "jit.trace": lambda t: torch.jit.trace(lambda x: x + 1, t)(t),
    "jit.script": lambda t: torch.jit.script(nn.ReLU())(t),
    "all_reduce": lambda t: reduced(t, direct=False),
    "all_reduce of the backend": lambda t: reduced(t, direct=True),
    "apply_": lambda t: t.apply_(lambda x: x + 1),
    "map_": lambda t: t.map_(t.clone(), lambda x, y: x + y),
    "to_mkldnn": lambda t: t.to_mkldnn().to_dense(),
    "to_sparse": lambda t: t.to_sparse().to_dense(),
    "sparse_coo_tensor": lambda t: torch.sparse_coo_tensor(torch.arange(6)[None], t).to_dense(),
    "sparse_csr_tensor": lambda t: torch.sparse_csr_tensor(
        torch.tensor([0, 6]), torch.arange(6), t, size=(1, 6)
    ).to_dense(),
    "nested": lambda t: torch.nested.nested_tensor([t]).to_padded_tensor(0.0),
    "quantize": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8).dequantize(),
    "fused optimizer": stepped,
    "foreach": lambda t: torch._foreach_add([t, t], 1)[0],
    "torch.tensor": lambda t: torch.tensor(t),
    "as_tensor": lambda t: torch.as_tensor(t),
    "asarray": lambda t: torch.asarray(t),
    "frombuffer": lambda t: torch.frombuffer(t, dtype=torch.float32),  # type: ignore[call-overload]
    "from_numpy": lambda t: torch.from_numpy(t.numpy()).clone(),
    "an index": lambda t: [0, 1, 2, 3, 4, 5, 6, 7, 8][t.int()[1]],
    "struct": lambda t: __import__("struct").pack("P", t.data_ptr()) != b"",
    "pandas": of_library(lambda lib, t: lib.Series(t.numpy()).tolist(), "pandas"),
    "image": of_library(lambda lib, t: lib.fromarray(t.view(2, 3).numpy()).size, "PIL.Image"),
    "cuda array": lambda t: t.__cuda_array_interface__,
    "cudart": lambda t: torch._C._construct_storage_from_data_pointer(
        t.data_ptr(), torch.device("cpu"), NUM_BYTES
    ).tolist(),
    "pin_memory": lambda t: t.pin_memory(),
    "cpp reader": lambda t: torch._C._nn._parse_to(t)[0] is not None,
}

MODES = {"deferred": deferred_mode, "fake": fake_mode, "eager": nullcontext}
KINDS = ("eager out", "deferred out", "deferred inside", "fake out", "fake inside")
kind = where = ""


def making() -> Any:
    return MODES[kind]()


def plain(value: Any) -> Any:
    """An outcome that can be compared: the values of real and deferred tensors, bytes as text."""
    if isinstance(value, torch.Tensor):
        if is_deferred(value):
            value = materialize_tensor(value)
        if kind == "fake":
            return [list(value.shape), str(value.dtype)]
        return value.detach().numpy().tolist()
    if isinstance(value, torch.UntypedStorage):
        return "storage"
    return value.hex() if isinstance(value, bytes) else value


def outcome(probe: Probe) -> Any:
    torch.manual_seed(0)
    try:
        if where == "inside":
            with making():
                value = probe(torch.arange(6.0).mul(1.5))
        else:
            with making():
                t = torch.arange(6.0).mul(1.5) if kind != "fake" else torch.empty(6)
            value = probe(t)
        return ["value", plain(value)]
    except BaseException as error:  # CheckpointException is no Exception
        return ["error", type(error).__name__, str(error)]


if __name__ == "__main__":
    for name, probe in PROBES.items():
        for which in KINDS:
            kind, where = which.split()
            print(json.dumps([which, name]), flush=True)
            print(json.dumps([which, name, outcome(probe)], default=str), flush=True)

"""A record in 32 bytes: two that have the same would give the same tensors.

Enters: tensors, deferred or real. Leaves: a digest of what they are, or will be. Invariant: it does
not depend on what has been materialized in between, nor on the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from torchfake import _private
from torchfake._graph import Contents, Deferred, External, Op, Read, history
from torchfake._metadata import Metadata
from torchfake._tensor import FakeTensor, is_deferred_fake


def digest_of(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The digest, in hexadecimal digits, of tensors and their names."""
    known: dict[int, bytes] = {}
    total = hashlib.sha256(b"torchfake record 1")
    for name, tensor in named:
        total.update(_packed(name, _of_tensor(tensor, known)))
    return total.hexdigest()


def _of_tensor(tensor: torch.Tensor, known: dict[int, bytes]) -> bytes:
    if not is_deferred_fake(tensor):
        return _of_values(tensor)
    assert isinstance(tensor, FakeTensor)
    recorded = tensor._fake_storage.recorded
    assert isinstance(recorded, Deferred)
    contents = recorded.contents
    for op in history([contents.op], all_of_it=True):
        if op.number not in known:
            known[op.number] = _of_op(op, known)
    return _packed(_of_record(tensor._fake_meta), _of_contents(contents, known))


def _of_op(op: Op, known: dict[int, bytes]) -> bytes:
    draw = b""
    if op.draw is not None:
        draw = _packed(_of_state(op.draw.root), op.draw.number, op.draw.words)
    name = str(op.func) if hasattr(op.func, "_schema") else op.func.__qualname__
    args = [_of_argument(arg, known) for arg in op.args]
    kwargs = [(key, _of_argument(arg, known)) for key, arg in sorted(op.kwargs.items())]
    places = [(made.place, _of_record(made.record)) for made in op.made]
    return _packed(name, args, kwargs, places, op.default_dtype, draw)


def _of_argument(arg: Any, known: dict[int, bytes]) -> Any:
    if type(arg) is Read:
        return _of_contents(arg.contents, known), _of_record(arg.record)
    if type(arg) is External:
        return _of_values(arg.tensor)
    if type(arg) in (list, tuple):
        return [_of_argument(item, known) for item in arg]
    return arg


def _of_contents(contents: Contents, known: dict[int, bytes]) -> bytes:
    """Of an operation that has several results, which."""
    if contents.op is None:
        return _packed("nothing", contents.cell.num_bytes)
    place = [*contents.op.results()].index(contents.cell)
    return _packed(known[contents.op.number], place)


def _of_record(record: Metadata) -> Any:
    return record.size, record.stride, record.offset, str(record.dtype), str(record.device)


def _of_state(state: torch.Tensor) -> bytes:
    return hashlib.sha256(state.numpy().tobytes()).digest()


def _of_values(tensor: torch.Tensor) -> bytes:
    with _private.as_eager():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return _packed(tuple(tensor.shape), str(tensor.dtype), hashlib.sha256(data).digest())


def _packed(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()

"""Digests: 32 bytes for operations, contents and tensors. Equal digests mean equal values.

Input: recorded operations, contents, metadata, real tensors. Output: SHA-256 digests. Invariant: a
digest depends on the computation and all its inputs; not on earlier replays, and not on the
process.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import torch

from torchfake._core.memory import raw_bytes
from torchfake._core.metadata import Metadata
from torchfake._graph.externals import External
from torchfake._graph.file_slices import FileSlice
from torchfake._graph.operations import Contents, Op, Read, dependencies
from torchfake._torch import dispatcher
from torchfake._torch.numerics import Numerics


def digest_of_op(op: Op) -> bytes:
    """The digest of an operation and of all operations that it depends on."""
    for each in dependencies([op], ignore_cached=True):
        if each.digest is None:
            each.digest = _of_op(each)
    assert op.digest is not None
    return op.digest


def digest_of_contents(contents: Contents) -> bytes:
    """The digest of the operation that wrote `contents` and of their position in its results."""
    if contents.op is not None:
        digest_of_op(contents.op)
    return _of_contents(contents)


def digest_of_record(record: Metadata) -> bytes:
    """The digest of a metadata record."""
    layout = record.size, record.stride, record.offset, str(record.dtype), str(record.device)
    zero = ("zero",) if record.zero else ()  # digests in existing files stay valid
    return hash_parts(layout, record.conj, record.neg, *zero)


def digest_of_values(tensor: torch.Tensor) -> bytes:
    """The digest of a real tensor: its shape, dtype and bytes."""
    with dispatcher.as_eager():
        data: Any = raw_bytes(tensor).numpy()
    return hash_parts(tuple(tensor.shape), str(tensor.dtype), hashlib.sha256(data).digest())


def hash_parts(*parts: Any) -> bytes:
    """The digest of numbers, strings and digests."""
    return hashlib.sha256(repr(parts).encode()).digest()


def _of_op(op: Op) -> bytes:
    args = [_of_argument(arg) for arg in op.args]
    kwargs = [(key, _of_argument(arg)) for key, arg in sorted(op.kwargs.items())]
    outputs = [(output.position, digest_of_record(output.record)) for output in op.outputs]
    settings = _of_settings(op.numerics)
    return hash_parts(op.name, args, kwargs, outputs, settings, _of_draw(op.draw))


def _of_settings(settings: Numerics) -> Any:
    """The settings that a digest includes. Settings in which ranks may differ, such as the number
    of threads, are left out.
    """
    options = () if settings.deterministic is None else (settings.deterministic,)
    return str(settings.default_dtype), settings.flushes_denormals, *options


def _of_draw(draw: Any) -> Any:
    """The position of a draw: a number of words after a state, or after a draw with a digest."""
    if draw is None:
        return None
    if draw.anchor_digest is not None:
        return draw.anchor_digest, draw.offset_words
    if draw.previous is not None:
        return draw.previous.digest, draw.offset_words
    return hashlib.sha256(draw.anchor.cpu().numpy()).digest(), draw.offset_words


def _of_argument(arg: Any) -> Any:
    if type(arg) is Read:
        return _of_contents(arg.contents), digest_of_record(arg.record)
    if type(arg) is External:
        return digest_of_values(arg.tensor)
    if type(arg) is FileSlice:
        return arg.digest()
    if type(arg) in (list, tuple):
        return [_of_argument(item) for item in arg]
    if isinstance(arg, (float, complex)):  # repr gives all NaNs the same text
        return type(arg).__name__, struct.pack("dd", arg.real, arg.imag)
    return arg


def _of_contents(contents: Contents) -> bytes:
    if contents.op is None:
        return hash_parts("nothing", contents.cell.num_bytes)
    position = [*contents.op.modified_cells()].index(contents.cell)
    return hash_parts(contents.op.digest, position)

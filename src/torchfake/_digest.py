"""A record in 32 bytes: two that have the same would give the same values.

Enters: operations. Leaves: a digest of what they do, and of all that they depend on. Invariant: it
does not depend on what has been done for real in between, nor on the process.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from torchfake import _private
from torchfake._graph import Contents, External, Op, Read, history
from torchfake._memory import raw_bytes
from torchfake._metadata import Metadata


def digest_of_op(op: Op) -> bytes:
    """The digest of `op`, and of what is behind it."""
    for each in history([op], all_of_it=True):
        if each.digest is None:
            each.digest = _of_op(each)
    assert op.digest is not None
    return op.digest


def digest_of_contents(contents: Contents) -> bytes:
    """The same of contents: of an operation that has several results, which."""
    if contents.op is not None:
        digest_of_op(contents.op)
    return _of_contents(contents)


def digest_of_record(record: Metadata) -> bytes:
    """Of a view's metadata."""
    place = record.size, record.stride, record.offset, str(record.dtype), str(record.device)
    return packed(place, record.conj, record.neg)


def digest_of_values(tensor: torch.Tensor) -> bytes:
    """Of a real tensor."""
    with _private.as_eager():
        data: Any = raw_bytes(tensor).numpy()
    return packed(tuple(tensor.shape), str(tensor.dtype), hashlib.sha256(data).digest())


def packed(*parts: Any) -> bytes:
    """The digest of numbers, strings and digests."""
    return hashlib.sha256(repr(parts).encode()).digest()


def _of_op(op: Op) -> bytes:
    args = [_of_argument(arg) for arg in op.args]
    kwargs = [(key, _of_argument(arg)) for key, arg in sorted(op.kwargs.items())]
    places = [(made.place, digest_of_record(made.record)) for made in op.made]
    return packed(op.name, args, kwargs, places, str(op.default_dtype), _of_draw(op.draw))


def _of_draw(draw: Any) -> Any:
    """Where it begins: behind a state, or behind a draw of which the same is known."""
    if draw is None:
        return None
    if draw.behind is not None:
        return draw.behind, draw.words
    if draw.before is not None:
        return draw.before.digest, draw.words
    return hashlib.sha256(draw.anchor.cpu().numpy()).digest(), draw.words


def _of_argument(arg: Any) -> Any:
    if type(arg) is Read:
        return _of_contents(arg.contents), digest_of_record(arg.record)
    if type(arg) is External:
        return digest_of_values(arg.tensor)
    if type(arg) in (list, tuple):
        return [_of_argument(item) for item in arg]
    return arg


def _of_contents(contents: Contents) -> bytes:
    if contents.op is None:
        return packed("nothing", contents.cell.num_bytes)
    place = [*contents.op.results()].index(contents.cell)
    return packed(contents.op.digest, place)

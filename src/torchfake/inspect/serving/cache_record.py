"""The record of a KV cache: its layers and their bytes.

Input: a cache of transformers. Output: a :class:`ServedCache`, plain data. Invariant: bytes are
those of storages, each counted once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torchfake.inspect.copies.workload import tensors_in
from torchfake.observe import Storage, held_tensors, storage_of

STATES = "states"
"""The name of a paged cache without blocks: of states alone, which no token adds to."""


@dataclass(frozen=True)
class LayerCache:
    """What one layer caches for all users."""

    kind: str  # the class of transformers, or the kind of attention in a paged cache
    num_bytes: int


@dataclass(frozen=True)
class ServedCache:
    """What is cached for all users when each has a full context."""

    name: str  # the class of transformers, "blocks of 16 tokens", or STATES
    users: int
    context: int  # tokens per user
    layers: tuple[LayerCache, ...]
    pages: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Of a paged cache, what each layer caches per token and per sequence."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def num_tokens(self) -> int:
        """Tokens of all users."""
        return self.users * self.context

    @property
    def bytes_per_token(self) -> float:
        """Bytes of all layers per token, averaged over a context."""
        return self.num_bytes / self.num_tokens

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """The number of layers of each kind, and their bytes."""
        counts: Counter[str] = Counter(layer.kind for layer in self.layers)
        sizes: Counter[str] = Counter()
        for layer in self.layers:
            sizes[layer.kind] += layer.num_bytes
        return {kind: (count, sizes[kind]) for kind, count in counts.items()}

    def to_dict(self) -> dict[str, Any]:
        """The fields and totals, as a dict for JSON."""
        return {
            "name": self.name,
            "users": self.users,
            "context": self.context,
            "num_bytes": self.num_bytes,
            "bytes_per_token": self.bytes_per_token,
            "layers": {k: {"count": n, "bytes": size} for k, (n, size) in self.by_kind.items()},
        }


def record_of(cache: Any, device: str, users: int, context: int) -> ServedCache:
    """The record of what a cache of transformers holds on a device."""
    seen: set[int] = set()
    layers = [
        LayerCache(type(layer).__name__, sum(s.num_bytes for s in _new(layer, device, seen)))
        for layer in layers_of(cache)
    ]
    # tensors outside of the layers, such as the states of linear attention in MiniMax's cache
    rest = sum(storage.num_bytes for storage in _new(cache, device, seen))
    layers = [x for x in (*layers, LayerCache(type(cache).__name__, rest)) if x.num_bytes]
    return ServedCache(type(cache).__name__, users, context, tuple(layers))


def layers_of(cache: Any) -> list[Any]:
    """The layers of a cache; for an encoder-decoder, those of self- and cross-attention."""
    both = [getattr(cache, f"{name}_attention_cache", None) for name in ("self", "cross")]
    found = [layer for part in both if part is not None for layer in part.layers]
    return found or list(getattr(cache, "layers", (cache,)))


def layer_bytes(layer: Any, device: str) -> int:
    """Bytes of the tensors that a layer caches on a device: of their elements, not their storages.
    Counters, which have no dims, are not counted.
    """
    tensors = (held for tensor in tensors_in(vars(layer)) for held in held_tensors(tensor))
    return sum(t.nbytes for t in tensors if t.dim() and str(t.device) == device)


def _new(layer: Any, device: str, seen: set[int]) -> list[Storage]:
    """The storages of a layer on a device that are not in `seen`, to which they are added."""
    found = []
    for tensor in tensors_in(vars(layer)):
        for held in held_tensors(tensor):
            storage = storage_of(held)
            if storage is not None and id(storage) not in seen and str(storage.device) == device:
                seen.add(id(storage))
                found.append(storage)
    return found

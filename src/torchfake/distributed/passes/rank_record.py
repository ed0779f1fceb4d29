"""The record of what one rank of a server holds, and does in a pass over any number of tokens.

Input: shapes of weights, rows, bytes. Output: a :class:`RankWork`, plain data. Invariant: layers
that are alike are equal; figures are of one rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from torchfake.inspect.contents.positions import Positions
from torchfake.inspect.serving.blocks import Page
from torchfake.inspect.timing.collectives import GPUS_PER_NODE


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of a rank."""

    name: str
    shape: tuple[int, ...]  # of the rank's shard
    itemsize: int
    is_parameter: bool
    is_kept: bool = False  # in the model's dtype, by the checkpoint

    @property
    def num_values(self) -> int:
        """Elements of the shard."""
        return torch.Size(self.shape).numel()

    @property
    def num_bytes(self) -> int:
        """Bytes in the dtype of the model."""
        return self.num_values * self.itemsize


@dataclass(frozen=True)
class Multiplied:
    """The product of a pass's activations with a weight."""

    weight: Weight
    rows: float  # for each token or, `of_sequences`, for each sequence; per expert, if stacked
    of_sequences: bool  # whether the last token of a sequence alone is multiplied
    ranks: int = 1  # whose tokens are multiplied, with as many tokens each: those of ``ep``


@dataclass(frozen=True)
class Sent:
    """The messages of one kind in a pass."""

    collective: str
    axis: str
    group_size: int
    token_bytes: float  # the payload for each token of the pass
    in_node: int = GPUS_PER_NODE  # ranks of the group that are in one node, or more


@dataclass(frozen=True)
class LayerWork:
    """What one layer, or what is outside of all layers, does in a pass."""

    held: tuple[Weight, ...] = ()
    products: tuple[Multiplied, ...] = ()
    pair_flops: float = 0.0  # FLOPs of attention for each pair of a query and a key
    attention: str = ""  # the kernel of attention, as in ATTENTION; "" if none ran
    token_bytes: float = 0.0  # that operators other than products read and write for each token
    token_flops: float = 0.0  # of products without weights, such as those of states
    sent: tuple[Sent, ...] = ()
    pages: tuple[Page, ...] = ()  # what is cached
    launches: int = 0  # operators and messages of a pass over one token of each sequence
    cached_flops: float = 0.0  # `pair_flops` where the key is in the cache
    prompt_launches: int = 0  # as `launches`, of the pass over prompts

    def kernels(self, *, loops: bool) -> int:
        """Operators and messages of a pass; if what loops over the tokens of prompts, such as the
        scan of a state, `loops` and is not one kernel, as in an engine, those of all tokens.
        """
        return self.prompt_launches if loops else self.launches


@dataclass(frozen=True)
class RankWork:
    """What one rank holds, and does in a pass."""

    class_name: str
    layers: tuple[LayerWork, ...]  # of the decoder, in order; layers that are alike are equal
    before: LayerWork  # embeddings, and what no pass over text uses
    dtype: torch.dtype  # of activations
    activation_bytes: int  # at the peak of the pass over the most tokens
    pass_tokens: int  # of that pass
    after: LayerWork = LayerWork()  # the last norm, the head
    towers: tuple[LayerWork, ...] = ()  # other lists of layers, such as those of a vision tower
    hidden_size: int = 0  # of what layers pass on
    positions: Positions | None = None  # for how many tokens the model was made
    vocab_size: int = 0
    is_fused: bool = True  # whether the run was with a fused kernel of attention
    not_given: str = ""  # what the model takes beside text

    @property
    def parts(self) -> tuple[LayerWork, ...]:
        """All layers, and what is outside of them."""
        return (*self.layers, self.before, self.after, *self.towers)

    @cached_property
    def pages(self) -> Counter[Page]:
        """What all layers cache; of those that cache alike, how many there are."""
        return Counter(replace(page, layer=0) for part in self.parts for page in part.pages)

    def stage(self, number: int, of: int, boundary: tuple[Sent, ...] = ()) -> RankWork:
        """The work of one of the stages of a pipeline, which have equally many layers each, as far
        as that is possible. The first stage has the embeddings and towers, the last one the head;
        the others send `boundary` to the next one.
        """
        if of == 1:
            return self
        bounds = [round(i * len(self.layers) / of) for i in range(of + 1)]
        layers = self.layers[bounds[number] : bounds[number + 1]]
        before, towers = (self.before, self.towers) if number == 0 else (LayerWork(), ())
        after = LayerWork(sent=boundary)
        if number == of - 1:
            tied = {p.weight for p in self.after.products} & set(self.before.held)
            after = replace(self.after, held=(*self.after.held, *tied))
        return replace(self, layers=layers, before=before, after=after, towers=towers)

    def with_cache(self, change: Callable[[Page], Page]) -> RankWork:
        """The work with other pages; layers that are one object stay one."""
        made = {
            id(part): replace(part, pages=tuple(map(change, part.pages))) if part.pages else part
            for part in self.parts
        }
        layers, towers = ([made[id(x)] for x in all] for all in (self.layers, self.towers))
        before, after = made[id(self.before)], made[id(self.after)]
        return replace(self, layers=tuple(layers), towers=tuple(towers), before=before, after=after)

    @property
    def has_experts(self) -> bool:
        """Whether tokens are multiplied with some of the matrices in stacks of them."""
        return any(len(m.weight.shape) > 2 for layer in self.layers for m in layer.products)

    @property
    def weights(self) -> list[Weight]:
        """All parameters and buffers."""
        return [weight for part in self.parts for weight in part.held]

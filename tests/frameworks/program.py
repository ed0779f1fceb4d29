"""What a program is made of: how its model is built, where it is materialized, what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake import deferred_init, materialize_module

PLACES = ("before", "inside", "after", "forgotten")
"""Where ``materialize_module`` is called: before the framework is given the model; inside its own
set-up, where the framework has such a place; after it; or not at all."""

EQUAL, ERROR, NONE = "equal", "error", "-"  # "-": the framework has no such place


class Result(NamedTuple):
    """What a run leaves."""

    losses: list[float]
    weights: dict[str, torch.Tensor]  # whole tensors


class Program(NamedTuple):
    """A framework's own set-up of a model, and two steps of training.

    `expected` has what each place is to give, in the order of ``PLACES``: the table in
    docs/distributed/frameworks.md shows it, and a run is compared with it.
    """

    name: str
    run: Callable[[Run], Result]
    expected: tuple[str, ...]


PROGRAMS: dict[str, Program] = {}


def program(name: str, *expected: str) -> Callable[[Callable[[Run], Result]], Any]:
    """Register a program."""
    assert len(expected) == len(PLACES)

    def register(run: Callable[[Run], Result]) -> Any:
        PROGRAMS[name] = Program(name, run, expected)
        return run

    return register


class Net(nn.Module):
    """A small model of tokens, with a buffer that is drawn and a weight that is drawn twice."""

    def __init__(self, width: int = 16, words: int = 32, persistent: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("scale", torch.rand(width) + 0.5, persistent=persistent)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    """A layer whose two matrices tensor parallelism shards by columns and by rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Run:
    """One run of a program: `place` is one of ``PLACES``, or ``eager``."""

    def __init__(self, place: str, rank: int, folder: str) -> None:
        self.place = place
        self.rank = rank
        self.folder = folder  # that all ranks see

    def build(self, make: Callable[..., nn.Module] = Net, seed: int = 0, **kwargs: Any) -> Any:
        """The model: eager, deferred, or deferred and materialized already."""
        torch.manual_seed(seed)
        if self.place == "eager":
            return make(**kwargs)
        return self.materialize("before", deferred_init(make, **kwargs))

    def materialize(self, place: str, module: Any) -> Any:
        """Called at each place; it does so at the one of this run."""
        return materialize_module(module) if place == self.place else module

    def tokens(self, step: int, words: int = 32) -> torch.Tensor:
        """A batch; another one on each rank."""
        generator = torch.Generator().manual_seed(100 * step + self.rank)
        return torch.randint(words, (2, 8), generator=generator)

    def train(
        self,
        model: nn.Module,
        optimizer: Any = None,
        backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
    ) -> list[float]:
        """Losses of two steps. All ranks of a tensor parallel model need the same tokens."""
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(2):
            loss = loss_of(model, self.tokens(step))
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            losses.append(loss.item())
        return losses


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of predicting the next token."""
    logits = model(tokens)
    logits = getattr(logits, "logits", logits)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights by name; those of all ranks, of a sharded model. All ranks must call this."""
    weights = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        weights[name] = whole.detach().clone()
    return weights

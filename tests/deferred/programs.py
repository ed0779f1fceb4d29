"""Initialisation programs: made by hypothesis, run by eager and by the recorder alike.

Enters: a list of steps, each a name and a few integers. Leaves: the tensors that are alive at the
end. A step is total: whatever the integers, it does something valid, so that no example is lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Step = tuple[str, int, int, int]
Action = Callable[["State", int, int, int], Any]

ACTIONS: dict[str, Action] = {}
SIZES = [(4, 5), (5, 4), (1, 7), (6, 6), (17, 3), (2, 30), (37, 29)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class State:
    """The tensors of a running program, and the generator it passes around."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = [torch.ones(4, 5), torch.zeros(2, 30)]
        self.generator = torch.Generator()
        self.generator.manual_seed(7)
        self.read: list[Any] = []  # values that the program has seen
        self.fresh = self.tensors  # where what is made of nothing goes: see `leave`
        self.aside: list[Tensor] = []  # compared at the end, and otherwise left alone
        self.constants = [torch.arange(20.0).view(4, 5), torch.full((3,), 0.25)]

    def leave(self) -> None:
        """The recorder is left: what is made of nothing is real from now on, and set apart."""
        self.fresh = []

    def pick(self, i: int) -> Tensor:
        return self.tensors[i % len(self.tensors)]

    def pick_float(self, i: int) -> Tensor:
        """One that draws may fill."""
        return self.pick_where(i, lambda t: t.is_floating_point())

    def pick_where(self, i: int, suits: Callable[[Tensor], bool]) -> Tensor:
        found = [t for t in self.tensors if suits(t)]
        return found[i % len(found)] if found else self.add(torch.ones(4, 5))

    def pick_in_order(self, i: int) -> Tensor:
        """One whose elements do not overlap, so that it may be written."""
        return self.pick_where(i, lambda t: t.is_floating_point() and 0 not in t.stride())

    def add_fresh(self, tensor: Tensor) -> None:
        self.fresh.append(tensor)

    def add(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor


def step(action: Action) -> Action:
    ACTIONS[action.__name__] = action
    return action


def _size(i: int) -> tuple[int, int]:
    return SIZES[i % len(SIZES)]


def _dtype(i: int) -> torch.dtype:
    return DTYPES[i % len(DTYPES)]


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """`other` with the shape and dtype of `tensor`."""
    flat = other.detach().reshape(-1)
    repeats = -(-tensor.numel() // max(flat.numel(), 1))
    return flat.repeat(max(repeats, 1))[: tensor.numel()].reshape(tensor.shape).to(tensor.dtype)


# Factories.


@step
def factory(s: State, i: int, j: int, k: int) -> None:
    size, dtype = _size(i), _dtype(j)
    makers = [
        lambda: torch.empty(size, dtype=dtype).fill_(k),
        lambda: torch.zeros(size),
        lambda: torch.full(size, k / 3, dtype=dtype),
        lambda: torch.arange(k + 1, dtype=dtype),
        lambda: torch.eye(k % 6 + 1, dtype=dtype),
        lambda: torch.linspace(0, 1, k + 2),
        lambda: torch.tensor([[k, 0.5], [1.5, -k]]),
        lambda: torch.tensor(k),
        lambda: torch.from_numpy(np.arange(k + 1.0)) * 2,
        lambda: torch.tril(torch.ones(size)),
    ]
    s.add_fresh(makers[k % len(makers)]())


@step
def like(s: State, i: int, j: int, k: int) -> None:
    t = s.pick_float(i)
    makers = [torch.zeros_like, torch.ones_like, torch.randn_like, torch.rand_like, torch.clone]
    with torch.no_grad():
        s.add(makers[j % len(makers)](t))


@step
def new(s: State, i: int, j: int, k: int) -> None:
    t = s.pick_float(i)
    makers = [t.new_zeros, t.new_ones, lambda size: t.new_full(size, j / 7)]
    s.add(makers[k % len(makers)](_size(j)))


# Draws.


@step
def drawn(s: State, i: int, j: int, k: int) -> None:
    size, dtype = _size(i), _dtype(j)
    generator = s.generator if k % 2 else None
    makers = [
        lambda: torch.randn(size, dtype=dtype, generator=generator),
        lambda: torch.rand(size, dtype=dtype, generator=generator),
        lambda: torch.randint(0, 9, size, generator=generator),
        lambda: torch.randperm(20, generator=generator),
        lambda: torch.bernoulli(torch.full(size, 0.3), generator=generator),
        lambda: torch.normal(torch.ones(size), 0.5, generator=generator),
        lambda: torch.normal(0.0, 1.0, size, generator=generator),
        lambda: torch.multinomial(torch.ones(9), 4, generator=generator),
        lambda: torch.poisson(torch.full(size, 2.0), generator=generator),
        lambda: torch.nn.functional.dropout(torch.ones(size), 0.5),
    ]
    s.add_fresh(makers[(j + k) % len(makers)]())


@step
def fill(s: State, i: int, j: int, k: int) -> None:
    t = s.pick_in_order(i)
    generator = s.generator if k % 2 else None
    fills = [
        lambda: t.normal_(0.5, 2, generator=generator),
        lambda: t.uniform_(-1, 3, generator=generator),
        lambda: t.bernoulli_(0.4, generator=generator),
        lambda: t.exponential_(generator=generator),
        lambda: t.random_(0, 50, generator=generator),
        lambda: t.geometric_(0.3, generator=generator),
        lambda: t.log_normal_(generator=generator),
        lambda: t.zero_(),
        lambda: t.fill_(k / 7),
    ]
    with torch.no_grad():
        fills[j % len(fills)]()


@step
def initialise(s: State, i: int, j: int, k: int) -> None:
    t = s.pick_where(
        i,
        lambda t: t.dim() == 2 and t.dtype == torch.float32 and t.is_contiguous(),
    )
    generator = s.generator if k % 2 else None
    init = torch.nn.init
    inits = [
        lambda: init.trunc_normal_(t, std=0.02, generator=generator),
        lambda: init.trunc_normal_(t, a=1.0, b=3.0, generator=generator),
        lambda: init.xavier_uniform_(t, generator=generator),
        lambda: init.kaiming_normal_(t, generator=generator),
        lambda: init.orthogonal_(t, generator=generator),
        lambda: init.sparse_(t, 0.3, generator=generator),
        lambda: init.eye_(t),
        lambda: init.constant_(t, 0.3),
    ]
    with torch.no_grad():
        inits[j % len(inits)]()


# Views and what is done through them.


@step
def view(s: State, i: int, j: int, k: int) -> None:
    t = s.pick(i)
    views = [
        lambda: t.detach(),
        lambda: t.data,
        lambda: t.t() if t.dim() <= 2 else t,
        lambda: t.reshape(-1),
        lambda: t[0] if t.dim() and t.shape[0] else t,
        lambda: t[..., ::2] if t.dim() else t,
        lambda: t[1:] if t.dim() else t,
        lambda: t.unsqueeze(k % (t.dim() + 1)),
        lambda: t.expand(2, *t.shape),
        lambda: t.chunk(2)[k % 2 if t.dim() and t.shape[0] > 1 else 0] if t.dim() else t,
        lambda: t.unbind()[0] if t.dim() and t.shape[0] else t,
        lambda: t.diagonal() if t.dim() == 2 else t,
    ]
    with torch.no_grad():  # a view with a history of its own keeps its base from becoming real
        s.add(views[j % len(views)]())


@step
def change(s: State, i: int, j: int, k: int) -> None:
    t = s.pick_in_order(i)
    other = s.pick(k)
    changes = [
        lambda: t.add_(k),
        lambda: t.mul_(0.5),
        lambda: t.clamp_(-1, 1),
        lambda: t.copy_(_like(t, other)),
        lambda: t.copy_(s.constants[k % 2].sum()),
        lambda: t.neg_(),
        lambda: torch.add(t, 1, out=t),
        lambda: torch._foreach_add_([t, s.pick_in_order(k)], 1.0),
        lambda: t.__setitem__(0, k) if t.dim() and t.shape[0] else t,
        lambda: t.__setitem__(t > 0.5, 0.25),
        lambda: t.masked_fill_(t < 0, 1.0),
        lambda: t.index_fill_(0, torch.tensor([0]), 3.0) if t.dim() and t.shape[0] else t,
        lambda: t.sub_(s.constants[0].mean()),
    ]  # fmt: skip
    with torch.no_grad():
        changes[j % len(changes)]()


@step
def look(s: State, i: int, j: int, k: int) -> None:
    """Changes of what a tensor object looks at."""
    t = s.pick_float(i)
    other = s.pick_float(k)
    looks = [
        lambda: setattr(t, "data", other),
        lambda: t.set_(other) if t.dtype == other.dtype else t,
        lambda: t.t_() if t.dim() <= 2 else t,
        lambda: t.unsqueeze_(0) if t.dim() < 3 else t,
        lambda: t.squeeze_(),
        lambda: torch.utils.swap_tensors(t, other) if t is not other else t,
        lambda: setattr(t, "data", t.to(_dtype(j))),
        lambda: t.resize_(2, 2) if t.numel() >= 4 and t.is_contiguous() else t,
    ]
    with torch.no_grad():
        looks[j % len(looks)]()


# Results of their own.


@step
def compute(s: State, i: int, j: int, k: int) -> None:
    t, other = s.pick_float(i), s.pick_float(k)
    full = t.detach().float()
    results = [
        lambda: [t + 1],
        lambda: [t * _like(t, other)],
        lambda: [t.to(_dtype(k))],
        lambda: [torch.cat([t.reshape(-1), other.reshape(-1).to(t.dtype)])],
        lambda: list(torch.linalg.qr(full.reshape(-1, 1))),
        lambda: list(full.reshape(-1).sort()) if full.numel() else [],
        lambda: list(full.reshape(1, -1).max(dim=1)) if full.numel() else [],
        lambda: [torch.where(full > 0, full, -full)],
        lambda: [copy.deepcopy(t.detach())],
        lambda: list(copy.deepcopy([t.detach(), t.detach().view(-1) if t.is_contiguous() else t])),
        lambda: [full.reshape(1, -1) @ full.reshape(-1, 1)],
        lambda: list(torch.split(full.reshape(-1), 3))[:3],
        lambda: [torch.nn.Parameter(t.detach())],
        lambda: [full.cumsum(0) if t.dim() else full],
        lambda: [torch.erfinv(torch.tanh(full))],
    ]
    with torch.no_grad():
        for result in results[j % len(results)]():
            s.add(result)


@step
def tie(s: State, i: int, j: int, k: int) -> None:
    s.add(s.pick(i))


@step
def drop(s: State, i: int, j: int, k: int) -> None:
    if len(s.tensors) > 2:
        del s.tensors[i % len(s.tensors)]


@step
def under(s: State, i: int, j: int, k: int) -> None:
    """Ambient state at the time of the call."""
    if k % 3 == 0:
        torch.set_default_dtype(torch.float64)
        s.add_fresh(torch.rand(3) + torch.ones(3))
        torch.set_default_dtype(torch.float32)
    elif k % 3 == 1:
        with torch.inference_mode():
            s.aside.append((torch.ones(3) * k).clone()[1:])  # most steps refuse such tensors
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            s.add_fresh(torch.rand(3, 4) @ torch.rand(4, 2))


# Reads.


@step
def read(s: State, i: int, j: int, k: int) -> None:
    t = s.pick(i)
    full = t.detach().double().nan_to_num()
    reads = [
        lambda: full.sum().item(),
        lambda: bool((full > 0.5).any()),
        lambda: full.tolist(),
        lambda: full.numpy().sum().item(),
        lambda: int(full.argmax()) if full.numel() else 0,
        lambda: torch.equal(full, full.clone()),
        lambda: float(full.mean()) if full.numel() else 0.0,
    ]
    value = reads[j % len(reads)]()
    s.read.append(value)
    if isinstance(value, (int, float)):
        s.add_fresh(torch.full((3,), float(value)))


@step
def by_value(s: State, i: int, j: int, k: int) -> None:
    """Results whose shape is a matter of values."""
    full = s.pick(i).detach().double().nan_to_num()
    results = [
        lambda: (full > 0.5).nonzero(),
        lambda: full[full > 0.5],
        lambda: full.masked_select(full < 1),
        lambda: full.unique(),
        lambda: torch.repeat_interleave(torch.ones(2), torch.randint(1, 3, (2,))),
    ]
    s.add(results[j % len(results)]())


def run(program: list[Step]) -> State:
    state = State()
    go_on(state, program)
    return state


def go_on(state: State, program: list[Step]) -> None:
    """A step that torch refuses is refused on both sides, and changes nothing."""
    for name, i, j, k in program:
        try:
            ACTIONS[name](state, i, j, k)
        except (RuntimeError, IndexError, TypeError) as error:
            state.read.append(type(error))

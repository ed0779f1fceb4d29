"""A run on fakes as hooks, autograd and a dispatch mode of torch see it: what graphs are held to.

What autograd has, a graph must have: it follows views and writes in place, but floating point
alone. What a graph has, the dispatch mode must have: it takes all that shares a storage for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import fake_mode
from torchfake.inspect.copies.workload import tensors_in

Key = tuple[str, int]
"""A call: its module's full name, and the how many-th call of it; or an input, or the output."""

Spec = tuple[tuple[int, ...], str]

INPUT, OUTPUT = -2, ("output", -1)


@dataclass
class SeenCall:
    """One call of a module."""

    key: Key
    module: nn.Module
    given: list[torch.Tensor]
    given_by: set[Key]
    was_made_by: set[Any]  # functions of autograd that made what is given
    order: int  # what was done in it comes after this
    level: int  # in how many calls it is
    outputs: list[Spec] = field(default_factory=list)
    is_leaf: bool = True  # no calls in it


@dataclass
class Seen:
    """A run: its calls, and between those without calls in them, which take from which."""

    calls: list[SeenCall] = field(default_factory=list)
    edges: set[tuple[Key, Key]] = field(default_factory=set)
    passed: set[Key] = field(default_factory=set)  # calls that return what they are given
    asked: set[Key] = field(default_factory=set)  # of whose values numbers were made, such as sizes

    @property
    def keys(self) -> list[Key]:
        return [call.key for call in self.calls]


def spec(tensor: torch.Tensor) -> Spec:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        yield from (tensor for item in value for tensor in flat(item))
    elif isinstance(value, dict):
        yield from flat(list(value.values()))


class ByAutograd:
    """Which calls a tensor comes from, by the graph of its gradient."""

    def __init__(self) -> None:
        self.keys: dict[Any, Key] = {}  # of functions that the gradient goes back to

    def start(self, key: Key, tensor: torch.Tensor) -> None:
        """What the model is given needs no gradient of its own: it may be written."""

    def order(self) -> int:
        """The place of what is noted now among all that is noted."""
        with torch.enable_grad():
            return torch.ones(1, requires_grad=True).clone().grad_fn._sequence_nr()

    def sources(self, call: SeenCall, made: list[torch.Tensor]) -> set[Key]:
        """What a call took, as far as it shows in what it made."""
        return self.behind(made)

    def in_place_of(self, call: SeenCall, output: Any) -> torch.Tensor | None:
        """A tensor of its own for a call that returns what it was given."""
        if isinstance(output, torch.Tensor) and output.grad_fn in call.was_made_by - {None}:
            return output.clone()
        return None

    def mark(self, call: SeenCall, tensor: torch.Tensor) -> bool:
        """The call made this; whether it can be told.

        All that was done in it is marked: of a view that is written later, autograd knows no more
        by what it was made, only by what its base was.
        """
        if tensor.grad_fn is None or tensor.grad_fn in call.was_made_by:
            return tensor.grad_fn is None
        todo = [tensor.grad_fn]
        while todo:
            function = todo.pop()
            is_done = function is None or function in self.keys
            if not is_done and call.order < function._sequence_nr() < _ORDER_OF_LEAVES:
                self.keys[function] = call.key
                todo += [following for following, _ in function.next_functions]
        return True

    def behind(self, tensors: Iterable[torch.Tensor]) -> set[Key]:
        found: set[Key] = set()
        todo = [tensor.grad_fn for tensor in tensors]
        visited = set(todo)
        while todo:
            function = todo.pop()
            if function in self.keys:
                found.add(self.keys[function])
            elif function is not None:
                more = {following for following, _ in function.next_functions} - visited
                visited |= more
                todo += more
        return found


_ORDER_OF_LEAVES = 2**63


class ByStorage(TorchDispatchMode):
    """Which calls a tensor comes from, or what shares its storage; and from which inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.by_tensor: dict[int, set[Key]] = {}
        self.by_storage: dict[int, set[Key]] = {}
        self.made: list[torch.Tensor] = []
        self.asked: set[Key] = set()
        self.kept: list[Any] = []

    def order(self) -> int:
        return len(self.made)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        has_values = not name.startswith("new_") and not name.endswith("_like")
        keys = self.behind(tensors_in((args, kwargs))) if has_values else set()
        if name == "_local_scalar_dense":
            self.asked |= keys
        for tensor in flat([result, *_written(func, args, kwargs or {})]):
            self._add(tensor, keys)
            self.made.append(tensor)
        return result

    def start(self, key: Key, tensor: torch.Tensor) -> None:
        self._add(tensor, {key})

    def sources(self, call: SeenCall, made: list[torch.Tensor]) -> set[Key]:
        return call.given_by

    def in_place_of(self, call: SeenCall, output: Any) -> None:
        """What it returns comes from it, and from where it came from."""

    def mark(self, call: SeenCall, tensor: torch.Tensor) -> bool:
        inputs = {key for key in self.behind([tensor]) if key[1] == INPUT}
        for made in [tensor, *self.made[call.order :]]:  # what it keeps besides, as in a cache
            self._add(made, {call.key, *inputs})
        if not {tensor.untyped_storage()} & {t.untyped_storage() for t in call.given}:
            self.by_tensor[id(tensor)] = {call.key, *inputs}
            self.by_storage[tensor.untyped_storage()._cdata] = {call.key, *inputs}
        return True

    def behind(self, tensors: Iterable[torch.Tensor]) -> set[Key]:
        found: set[Key] = set()
        for tensor in tensors:
            found |= self.by_tensor.get(id(tensor), set())
            found |= self.by_storage.get(tensor.untyped_storage()._cdata, set())
        return found

    def _add(self, tensor: torch.Tensor, keys: set[Key]) -> None:
        storage = tensor.untyped_storage()
        self.kept += [tensor, storage]
        self.by_tensor.setdefault(id(tensor), set()).update(keys)
        self.by_storage.setdefault(storage._cdata, set()).update(keys)


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


class _Hooks:
    """Notes calls, and what they take by an oracle."""

    def __init__(self, oracle: Any) -> None:
        self.oracle, self.seen = oracle, Seen()
        self.stack: list[SeenCall] = []
        self.counts: Counter[str] = Counter()

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        for call in self.stack:
            call.is_leaf = False
        given = tensors_in((args, kwargs))
        made_by = {tensor.grad_fn for tensor in given}
        call = SeenCall(
            (name, self.counts[name]),
            module,
            given,
            self.oracle.behind(given),
            made_by,
            self.oracle.order(),
            len(self.stack),
        )
        self.counts[name] += 1
        self.stack.append(call)
        self.seen.calls.append(call)

    def exit(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        call = self.stack.pop()
        while call.module is not module:  # one that raised, and was caught
            call = self.stack.pop()
        call.outputs = [spec(tensor) for tensor in flat(output)]
        if not call.is_leaf:
            return None
        made = tensors_in(output)
        self.seen.edges |= {(source, call.key) for source in self.oracle.sources(call, made)}
        replaced = self.oracle.in_place_of(call, output)
        for tensor in made if replaced is None else [replaced]:
            if not self.oracle.mark(call, tensor):
                self.seen.passed.add(call.key)
        return replaced


def seen(
    model: nn.Module,
    inputs: dict[str, Any],
    oracle: ByAutograd | ByStorage,
    answer: str | None = None,
) -> Seen:
    """What an oracle says of a run of a fake model, with gradients for that of autograd."""
    hooks, handles = _Hooks(oracle), []
    for name, module in model.named_modules():
        enter = partial(hooks.enter, name)
        handles += [
            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
            module.register_forward_hook(hooks.exit, with_kwargs=True),
        ]
    by_storage = isinstance(oracle, ByStorage)
    try:
        with fake_mode(answer=answer), torch.set_grad_enabled(not by_storage):
            for name, value in inputs.items():
                for tensor in tensors_in(value):
                    oracle.start((name, INPUT), tensor)
            with oracle if by_storage else nullcontext():
                output = model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    hooks.seen.edges |= {(source, OUTPUT) for source in oracle.behind(tensors_in(output))}
    if isinstance(oracle, ByStorage):
        hooks.seen.asked = oracle.asked
    return hooks.seen

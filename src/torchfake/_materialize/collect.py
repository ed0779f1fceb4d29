"""What is to be materialized of a module, collected in one walk over it.

Input: a module, and a choice of its submodules. Output: a :class:`Selection`: its tensors by name,
each once, what they are on this rank, deferred tensors in plain attributes, and the modules that
have to be notified afterwards. Invariant: nothing is changed or refused here; ``checks`` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.copies import attribute_tensors
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import distributed, subclass

Check = Callable[[torch.nn.Module], bool]
"""``check_fn(submodule)``: whether the tensors that belong to that submodule itself are chosen."""


class Attribute(NamedTuple):
    """A deferred tensor that a module holds as a plain attribute, or in a list or dict of one."""

    name: str  # fully qualified
    fake: FakeTensor
    owner: torch.nn.Module


class Selection(NamedTuple):
    """What one materialization is about."""

    tensors: NamedTensors  # parameters and buffers as modules hold them, each once
    attributes: Sequence[Attribute] = ()
    scripted: Sequence[str] = ()  # paths of chosen modules whose tensors C++ holds
    fsdp_modules: Sequence[torch.nn.Module] = ()  # which keep what they know of their shards

    @property
    def ids(self) -> set[int]:
        """The identities of the parameters and buffers."""
        return {id(tensor) for _, tensor in self.tensors}


def collect(
    module: torch.nn.Module, *, buffers_only: bool = False, check: Check | None = None
) -> Selection:
    """Collect what belongs to the submodules that `check` is true of. It is asked once of each.

    Args:
        module: with its submodules.
        buffers_only: leave parameters and plain attributes out.
        check: see :data:`Check`; None: all submodules.
    """
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    attributes: list[Attribute] = []
    scripted: list[str] = []
    fsdp_modules: list[torch.nn.Module] = []
    for path, submodule in module.named_modules():
        if distributed.is_fsdp_module(submodule):  # chosen or not: it may manage inner tensors
            fsdp_modules.append(submodule)
        if check is not None and not check(submodule):
            continue
        prefix = f"{path}." if path else ""
        own = [] if buffers_only else [*submodule.named_parameters(recurse=False)]
        own += submodule.named_buffers(recurse=False)
        for name, tensor in own:
            tensors.setdefault(id(tensor), (prefix + name, tensor))
        if not buffers_only:
            for name, value in vars(submodule).items():
                if name not in _OF_EVERY_MODULE and isinstance(value, _MAY_HOLD_TENSORS):
                    attributes += _attributes(prefix + name, value, submodule)
            for name, tensor in own:
                if type(tensor) not in _WITHOUT_INNER_TENSORS:
                    attributes += _of_tensor(prefix + name, tensor, submodule)
            if isinstance(submodule, torch.jit.ScriptModule):
                scripted.append(path)
    return Selection(list(tensors.values()), attributes, scripted, fsdp_modules)


def meshes_of(module: torch.nn.Module) -> list[Any]:
    """The meshes of all DTensors of a module, each once, in the order of the module."""
    everything = [*module.parameters(), *module.buffers()]
    sharded: list[Any] = [t for t in everything if distributed.is_dtensor(t)]
    return list({t.device_mesh: None for t in sharded})


_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_MAY_HOLD_TENSORS = (torch.Tensor, dict, list, tuple)
_WITHOUT_INNER_TENSORS = {torch.Tensor, torch.nn.Parameter, *FAKE_TYPES}


def _attributes(name: str, value: Any, module: torch.nn.Module) -> Iterator[Attribute]:
    """Tables of positions, and what ``weight_norm`` and pruning compute of their parameters."""
    for fake in _deferred_inside(value):
        yield Attribute(name, fake, module)


def _of_tensor(name: str, tensor: torch.Tensor, module: torch.nn.Module) -> Iterator[Attribute]:
    """What a parameter has in attributes of its own, such as the scales of its values."""
    for held in attribute_tensors(tensor):
        if is_deferred_fake(held):
            yield Attribute(name, held, module)  # type: ignore[arg-type]


def _deferred_inside(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, torch.Tensor):
        for leaf in subclass.leaf_tensors(value):
            if is_deferred_fake(leaf):
                yield leaf  # type: ignore[misc]
    elif isinstance(value, dict):
        for item in value.values():
            yield from _deferred_inside(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _deferred_inside(item)

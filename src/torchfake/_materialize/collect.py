"""The tensors of a module that are to be materialized, collected in one walk.

Input: a module, and a choice of its submodules. Output: a :class:`Selection`: parameters and
buffers by name, each once, deferred tensors in plain attributes and classes, and the modules that
have to be notified afterwards. Invariant: nothing is changed or refused here; ``checks`` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torchfake._materialize.reachable import Found, Search, may_refer
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import autograd
from torchfake._torch.distributed import dtensors

Check = Callable[[torch.nn.Module], bool]
"""``check_fn(submodule)``: whether the tensors that belong to that submodule itself are chosen."""


class Attribute(NamedTuple):
    """A deferred tensor that is reached from an attribute of a module or class, or a buffer that a
    forward pass has computed.
    """

    name: str  # fully qualified; "Class.attribute" of a class
    fake: FakeTensor
    owner: torch.nn.Module


class Left(NamedTuple):
    """What is reached and stays fake: a fake without a record, a storage, or another module."""

    name: str  # of the attribute, as in :class:`Attribute`
    kind: type


class Selection(NamedTuple):
    """The tensors and modules of one materialization."""

    tensors: NamedTensors  # parameters and buffers as modules hold them, each once
    attributes: Sequence[Attribute] = ()
    scripted: Sequence[str] = ()  # paths of chosen modules whose tensors C++ holds
    fsdp_modules: Sequence[torch.nn.Module] = ()  # which cache facts about their shards
    left: Sequence[Left] = ()  # what is no deferred tensor, and stays fake

    @property
    def ids(self) -> set[int]:
        """The identities of the parameters and buffers."""
        return {id(tensor) for _, tensor in self.tensors}


def collect(
    module: torch.nn.Module, *, buffers_only: bool = False, check: Check | None = None
) -> Selection:
    """Collect the tensors of the submodules for which `check`, called once for each, is true.

    Args:
        module: searched with its submodules.
        buffers_only: leave parameters and plain attributes out.
        check: see :data:`Check`; None: all submodules.
    """
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    attributes: list[Attribute] = []
    scripted: list[str] = []
    left: list[Left] = []
    search = Search(module)
    fsdp_modules: list[torch.nn.Module] = []
    for path, submodule in module.named_modules():
        if dtensors.is_fsdp_module(submodule):  # chosen or not: it may manage inner tensors
            fsdp_modules.append(submodule)
        if check is not None and not check(submodule):
            continue
        prefix = f"{path}." if path else ""
        own = [] if buffers_only else [*submodule.named_parameters(recurse=False)]
        buffers = [*submodule.named_buffers(recurse=False)]
        own += buffers
        for name, tensor in own:
            tensors.setdefault(id(tensor), (prefix + name, tensor))
        for name, buffer in buffers:
            if is_deferred_fake(buffer) and autograd.history_of(buffer) is not None:
                # a forward pass has computed it from parameters
                attributes.append(Attribute(prefix + name, buffer, submodule))
        if not buffers_only:
            search.note_class(submodule)
            _sort(_of_module(prefix, submodule, own, search), submodule, attributes, left)
            if isinstance(submodule, torch.jit.ScriptModule):
                scripted.append(path)
    _sort(search.from_classes(), module, attributes, left)
    return Selection(list(tensors.values()), attributes, scripted, fsdp_modules, left)


def _sort(
    found: Iterable[tuple[str, Found]],
    owner: torch.nn.Module,
    deferred: list[Attribute],
    left: list[Left],
) -> None:
    """Add each of what is found to one of the two; modules without fakes to neither."""
    for name, each in found:
        if isinstance(each, FakeTensor):
            if is_deferred_fake(each):
                deferred.append(Attribute(name, each, owner))
            else:
                left.append(Left(name, FakeTensor))
        elif isinstance(each, FakeUntypedStorage):
            left.append(Left(name, FakeUntypedStorage))
        elif not _is_around(each, owner) and _has_fakes(each):
            left.append(Left(name, torch.nn.Module))


def _is_around(found: torch.nn.Module, root: torch.nn.Module) -> bool:
    return any(each is root for each in found.modules())


def _has_fakes(module: torch.nn.Module) -> bool:
    return any(isinstance(t, FakeTensor) for t in (*module.parameters(), *module.buffers()))


def meshes_of(module: torch.nn.Module) -> list[Any]:
    """The meshes of all DTensors of a module, each once, in the order of the module."""
    everything = [*module.parameters(), *module.buffers()]
    sharded: list[Any] = [t for t in everything if dtensors.is_dtensor(t)]
    return list({t.device_mesh: None for t in sharded})


_REGISTERED = frozenset({"_parameters", "_buffers", "_modules", "training"})


def _of_module(
    prefix: str, module: torch.nn.Module, own: NamedTensors, search: Search
) -> Iterator[tuple[str, Found]]:
    """Tables of positions, distributions, what ``weight_norm`` and pruning compute of their
    parameters, and what a parameter has in attributes and hooks of its own, such as scales.
    """
    for name, value in vars(module).items():
        if name not in _REGISTERED and may_refer(value):
            for found in search.from_value(value):
                yield prefix + name, found
    for name, tensor in own:
        for found in search.from_tensor(tensor):
            yield prefix + name, found

"""The tensors of a module that another rank may send values for.

Input: the parameters and buffers of a module, and the module. Output: a :class:`Target` for each
tensor with memory of its own, deferred or real, by a name that it has on all ranks. Invariant:
nothing is changed; a tensor that has other values on each rank and does not say so is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchfake._sharding.local_slices import local_slices_of
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._sharding.one_source import Described
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.copies import attribute_tensors
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import MaterializeError

_PLAIN = {torch.Tensor, torch.nn.Parameter, *FAKE_TYPES}
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


class Target(NamedTuple):
    """A tensor that gets values, or that the source has."""

    tensor: Any  # as the module holds it, or as a wrapper that it holds is made of
    described: Described

    @property
    def local(self) -> torch.Tensor:
        """What this rank has of it."""
        return dtensors.local_tensor_of(self.tensor)


def targets_of(
    tensors: NamedTensors, module: torch.nn.Module, dtype: torch.dtype | None
) -> dict[str, Target]:
    """By name, in the order of the module.

    Args:
        tensors: the parameters and buffers that are chosen.
        module: that holds them, and others as plain attributes.
        dtype: to which floating point tensors that are deferred will be cast.

    Raises:
        MaterializeError, CheckpointError: naming a tensor that is not the same on all ranks.
    """
    names = _all_names(module)
    found: dict[str, Target] = {}
    for name, tensor in tensors:
        for inner, leaf in _leaves(name, tensor):
            its_names = names.get(id(leaf), (inner,))
            is_inside = leaf is not tensor
            found[inner] = Target(leaf, _described(inner, leaf, its_names, dtype, is_inside))
    known = {id(target.tensor) for target in found.values()}
    for name, leaf in _in_attributes(module):
        if id(leaf) not in known and leaf.layout is torch.strided:
            known.add(id(leaf))
            described = _described(name, leaf, (name,), dtype)
            found[name] = Target(leaf, described._replace(is_attribute=True))
    return found


def _all_names(module: torch.nn.Module) -> dict[int, tuple[str, ...]]:
    names: dict[int, tuple[str, ...]] = {}
    everything = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in everything:
        names[id(tensor)] = (*names.get(id(tensor), ()), name)
    return names


def _leaves(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    if torch.nn.parameter.is_lazy(tensor):
        return
    if hasattr(tensor, "_is_flat_param"):
        raise MaterializeError(
            f"{name} is a flat parameter of FSDP1, of which each rank has another part: call "
            "materialize_module with from_rank= before the module is wrapped"
        )
    if type(tensor) in _PLAIN:
        yield name, tensor
    elif not dtensors.is_dtensor(tensor):
        yield from subclass.named_leaves(name, tensor)
    elif subclass.inner_tensors(dtensors.shard_of(tensor)):
        shard = type(dtensors.shard_of(tensor)).__name__
        raise MaterializeError(
            f"{name} is sharded, and its shard is a {shard}, which from_rank= does not send"
        )
    else:
        yield name, tensor


def _described(
    name: str,
    tensor: Any,
    names: tuple[str, ...],
    dtype: torch.dtype | None,
    is_inside: bool = False,
) -> Described:
    slices = local_slices_of(name, tensor)
    is_deferred = is_deferred_fake(dtensors.local_tensor_of(tensor))
    own: torch.dtype = tensor.dtype
    if dtype is not None and is_deferred and not is_inside:
        own = dtype if own.is_floating_point or own.is_complex else own
    return Described(
        f"{str(own).removeprefix('torch.')}{list(tensor.shape)}",
        tensor.numel() * own.itemsize,
        names,
        None if slices.is_whole else slices.ranges,
        is_deferred,
    )


def _in_attributes(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The tensors in plain attributes of modules, and in attributes of their parameters."""
    for path, submodule in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in vars(submodule).items():
            if name not in _OF_EVERY_MODULE:
                yield from _inside(prefix + name, value)
        for name, tensor in submodule.named_parameters(recurse=False):
            for number, held in enumerate(attribute_tensors(tensor)):
                yield f"{prefix}{name}.attributes[{number}]", held


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        is_dtensor = dtensors.is_dtensor(value)
        yield from [(name, value)] if is_dtensor else subclass.named_leaves(name, value)
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _inside(f"{name}[{key!r}]", item)

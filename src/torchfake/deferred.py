"""The public functions of deferred initialization.

Input: a function that builds a module. Output: the module, with its tensors recorded and not
computed; and the module, materialized. Invariant: a materialized tensor is bit-identical to that of
eager construction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from torchfake._core import arguments
from torchfake._core.metadata import DEFERRED
from torchfake._files.load import Source
from torchfake._materialize import pipeline
from torchfake._materialize.checks import check_before_ddp
from torchfake._materialize.collect import Check, Selection, collect
from torchfake._materialize.dematerialize import dematerialize
from torchfake._patches import while_fakes_live
from torchfake._sharding.local_tensors import is_or_holds_deferred
from torchfake._torch import dispatcher
from torchfake._torch.contexts import holding
from torchfake._torch.distributed import patches
from torchfake.errors import NotDeferredError
from torchfake.fake import fake_mode, parameters_and_buffers

_T = TypeVar("_T")
_Mode = TypeVar("_Mode", bound="deferred_mode")
_Tensor = TypeVar("_Tensor", bound=torch.Tensor)
_Module = TypeVar("_Module", bound=torch.nn.Module)


class deferred_mode(fake_mode):
    """Context manager in which new tensors are fake, and the operations on them are recorded.

    Otherwise the same as :class:`torchfake.fake_mode`, including its arguments. When the outermost
    mode exits, torch's generators are set to the state in which eager code would have left them, if
    all draws can be counted.

    >>> with deferred_mode():
    ...     weight = torch.ones(2, 3)
    >>> materialize_tensor(weight).sum()
    tensor(6.)
    """

    _mark = DEFERRED


while_fakes_live.replacements[patches.PARALLEL] = partial(
    patches.check_before_ddp, check_before_ddp
)


def deferred_init(module_fn: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call ``module_fn(*args, **kwargs)`` with its tensors deferred: recorded, not allocated.

    Operations on a deferred tensor are recorded until it is materialized, also after this call.

    Args:
        module_fn: a module class, or any callable that returns modules or tensors.
        *args: positional arguments of `module_fn`.
        **kwargs: keyword arguments of `module_fn`.

    Raises:
        RecordError: if an operation cannot be recorded for a later replay.
        TypeError: if `module_fn` is a module instead of a callable, or cannot be called.

    Source: torchdistx.deferred_init (2022), which this replaces.

    >>> layer = deferred_init(torch.nn.Linear, 3, 4)
    >>> is_deferred(layer)
    True
    """
    if isinstance(module_fn, torch.nn.Module) or not callable(module_fn):
        raise TypeError(
            "deferred_init takes what builds a module and its arguments, as in "
            f"deferred_init(torch.nn.Linear, 3, 4), not a {type(module_fn).__name__}"
        )
    with deferred_mode():
        return module_fn(*args, **kwargs)


def is_deferred(obj: torch.Tensor | torch.nn.Module) -> bool:
    """Return whether a tensor is deferred, or any parameter or buffer of a module is.

    Raises:
        NotDeferredError: (a ValueError) for anything else.
    """
    if isinstance(obj, torch.Tensor):
        return is_or_holds_deferred(obj)
    if isinstance(obj, torch.nn.Module):
        return any(map(is_or_holds_deferred, parameters_and_buffers(obj)))
    raise NotDeferredError(f"is_deferred takes a tensor or a module, not {type(obj).__name__}")


def materialize_tensor(
    tensor: _Tensor,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
) -> _Tensor:
    """Materialize a deferred tensor in place, for all references to it, and return it.

    A real tensor is returned unchanged, on whatever device it is. For a DTensor, this rank's shard
    is materialized; all ranks of its mesh must make this call.

    Args:
        tensor: a tensor of any shape.
        device: the target device, instead of the recorded one. Random numbers are still those of
            the recorded device.
        dtype: the dtype to cast to, if the tensor is floating-point or complex.

    Raises:
        DeviceError: (a ValueError) if this machine does not have `device`, or it is ``meta``.
        TypeError: if `dtype` is not a floating-point or complex dtype.
        NotDeferredError: (a ValueError) if it is a fake that was not recorded, or not a tensor.
        MaterializeError: if the tensor cannot be materialized in place, for instance because an
            autograd graph holds it.
        RankMismatchError: if other ranks have recorded different operations.
        ReplayError: if a recorded operation cannot be replayed.

    >>> with deferred_mode():
    ...     weight = torch.ones(3)
    >>> materialize_tensor(weight, dtype=torch.bfloat16)
    tensor([1., 1., 1.], dtype=torch.bfloat16)
    """
    if not isinstance(tensor, torch.Tensor):
        raise NotDeferredError(
            f"materialize_tensor takes a tensor, not {type(tensor).__name__}; for a module use "
            "materialize_module"
        )
    arguments.check_arguments(dtype=dtype)
    request = pipeline.Request(_real_device(device), dtype)
    with holding(pipeline.lock):
        pipeline.run(Selection([("the tensor", tensor)]), request)
    return tensor


def materialize_module(
    module: _Module,
    buffers_only: bool = False,
    check_fn: Check | None = None,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: Source | None = None,
    strict: bool = True,
    threads: int | None = None,
    progress: bool | None = None,
    exchange: bool = False,
    from_rank: int | None = None,
    group: Any = None,
) -> _Module:
    """Materialize the deferred parameters and buffers of a module in place, and return it.

    Large modules are computed on several cores; the values do not depend on their number.

    Args:
        module: the module; its submodules are included.
        buffers_only: materialize buffers only, and leave parameters deferred.
        check_fn: ``check_fn(submodule)``, called once per submodule, returns whether to materialize
            the tensors that the submodule itself owns (not those of its children).
        device: the target device, instead of the recorded one. Random numbers are still those of
            the recorded device.
        dtype: the dtype to cast floating-point tensors to, as ``module.to(dtype)`` does.
        checkpoint: values to load instead of computing them, by the names of ``state_dict()``; they
            are cast to the module's dtypes. A directory (of safetensors files, or written by
            ``torch.distributed.checkpoint``), a file (safetensors, or written by ``torch.save`` and
            read with ``weights_only=True``), or a state dict. Of a sharded tensor each rank reads
            its part. Tensors missing from the checkpoint get the values of eager construction.
        strict: raise an error if the checkpoint has tensors that the module lacks, or has with
            another shape; if False, these are ignored with a warning.
        threads: the number of threads that compute values, by default ``torch.get_num_threads()``.
        progress: show a progress bar (needs tqdm). By default it is shown after two seconds, if
            tqdm is installed.
        exchange: ranks that hold columns of a matrix draw disjoint rows and exchange them, instead
            of each rank drawing the whole matrix. All ranks must then make this call.
        from_rank: the rank that has the values, which it sends to the others: its real tensors,
            what it recorded, or its `checkpoint`, which no other rank reads. It sends each rank its
            shards, and needs memory for one full tensor beside its own shards. All ranks of `group`
            must make this call.
        group: with `from_rank`, the process group, or device mesh, of the ranks that make this
            call; by default all ranks.

    Raises:
        NotDeferredError: (a ValueError) if `module` is not a module, or has fakes that were never
            recorded.
        MaterializeError: if a tensor, named in the message, cannot be materialized. Nothing has
            been changed then.
        CheckpointError: (a ValueError) if `checkpoint` cannot be read, or does not match the
            module. Nothing has been changed then.
        DeviceError: (a ValueError) if this machine does not have `device`, or it is ``meta``.
        TypeError: if an argument has the wrong type.
        ValueError: if `threads` is less than 1, `from_rank` is not in `group`, or is combined with
            `exchange`.
        RankMismatchError: on all ranks alike, if they have recorded different operations, or if a
            tensor that `from_rank` would send is missing or different there. Nothing has been
            changed then.
        ReplayError: if a recorded operation cannot be replayed. Tensors that are already
            materialized stay materialized, and another call continues from there.

    >>> torch.manual_seed(0) and None
    >>> layer = materialize_module(deferred_init(torch.nn.Linear, 3, 4))
    >>> torch.manual_seed(0) and None
    >>> torch.equal(layer.weight, torch.nn.Linear(3, 4).weight)
    True
    """
    if not isinstance(module, torch.nn.Module):
        raise NotDeferredError(
            f"materialize_module takes a module, not {type(module).__name__}; for a tensor use "
            "materialize_tensor"
        )
    arguments.check_arguments(
        buffers_only=buffers_only,
        check_fn=check_fn,
        dtype=dtype,
        checkpoint=checkpoint,
        strict=strict,
        progress=progress,
        exchange=exchange,
        threads=threads,
        from_rank=from_rank,
    )
    if from_rank is not None and exchange:
        raise ValueError("exchange=True is for values that all ranks draw: leave from_rank= out")
    if group is not None and from_rank is None:
        raise ValueError("group= says which ranks from_rank= sends to: pass that, too")
    request = pipeline.Request(
        device=_real_device(device),
        dtype=dtype,
        checkpoint=checkpoint,
        strict=strict,
        num_threads=threads,
        progress=progress,
        exchange=exchange,
        from_rank=from_rank,
        group=group,
    )
    with holding(pipeline.lock):
        selection = collect(module, buffers_only=buffers_only, check=check_fn)
        pipeline.run(selection, request, module)
    return module


def _real_device(device: torch.device | str | int | None) -> torch.device | None:
    if device is None:
        return None
    with dispatcher.as_eager():  # outside all modes, so that the device must really exist
        return arguments.real_device(device, "device")


def dematerialize_module(module: _Module, check_fn: Check | None = None) -> _Module:
    """Free the memory of a materialized module: it becomes deferred again, in place.

    The current values are first compared with those that the record gives, tensor by tensor, so
    that the next materialization gives the same bits.

    Args:
        module: the module; its submodules are included.
        check_fn: ``check_fn(submodule)`` returns whether to defer the tensors of that submodule.

    Raises:
        ChangedValueError: (a ValueError) if the values of a tensor differ from the recorded ones,
            or the tensor was never recorded; the message names it. Nothing has been changed then.
        MaterializeError: if a tensor is sharded, or held by an autograd graph. Nothing has been
            changed then.
        NotDeferredError: (a ValueError) if `module` is not a module.
        TypeError: if `check_fn` cannot be called with a submodule.
    """
    if not isinstance(module, torch.nn.Module):
        raise NotDeferredError(f"dematerialize_module takes a module, not {type(module).__name__}")
    arguments.check_arguments(check_fn=check_fn)
    with holding(pipeline.lock):
        dematerialize(collect(module, check=check_fn).tensors)
    return module

"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, and the operator with a private generator; meta kernels, registered when this file is
imported. Invariant: the global generators never move; a private generator, forked from the global
one when it is first needed, draws in its place. A ``generator=`` that the caller given does move.
Called by: ``_operators/constant_propagation``.

Draws of integers and of single numbers decide what a program does next (samplers, seeds, LayerDrop)
and keep their values; draws of floats are weights and noise and do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._core import modes, schemas
from torchfake._operators.meta_kernels import register_meta_kernel
from torchfake._torch import backends

aten = torch.ops.aten


def keeps_drawn_values(func: Any, results: list[Any]) -> bool:
    """Whether the values that `func` draws for `results` are kept."""
    return schemas.overload_with_generator(func) is not None and all(
        not (r.dtype.is_floating_point or r.dtype.is_complex) or r.dim() == 0 for r in results
    )


def with_private_generator(func: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`func` and `kwargs` so changed that running them does not move the global generator."""
    given = kwargs.get("generator")
    if given is not None and backends.canonical_generator(given) is not torch.default_generator:
        return func, kwargs
    overload = schemas.overload_with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    return overload, {**kwargs, "generator": _private_generator()}


def _private_generator() -> torch.Generator:
    """The thread's fork of the global generator; a new fork after the user has reseeded that."""
    now = torch.default_generator.get_state()
    forked_generator = modes.forked_generator()
    if (
        forked_generator.generator is None
        or forked_generator.forked_from is None
        or not torch.equal(now, forked_generator.forked_from)
    ):
        forked_generator.generator, forked_generator.forked_from = _fork(now), now
    return forked_generator.generator


def _fork(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator(device="cpu")
    generator.set_state(state)
    return generator


# Meta kernels, as in _operators/meta_kernels.


@register_meta_kernel(
    aten.normal_.default, aten.uniform_.default, aten.exponential_.default,
    aten.geometric_.default, aten.cauchy_.default, aten.log_normal_.default,
    aten.random_.default, aten.random_.to, getattr(aten.random_, "from"), aten.bernoulli_.float
)  # fmt: skip
def random_fill(target: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """A fill writes in place. Torch's meta kernels of these refuse dtypes of empty tensors, of
    which eager accepts any; ``_cache/trials`` finds what it does not.
    """
    return target


@register_meta_kernel(aten.randn.default, aten.randn.generator)
def randn(size: list[int], *, generator: Any = None, **options: Any) -> Tensor:
    """The same: torch's refuses dtypes of empty tensors."""
    return torch.empty(size, **options)


@register_meta_kernel(aten.randn_like.default, aten.randn_like.generator)
def randn_like(tensor: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """The same."""
    return torch.empty_like(tensor, **options)


@register_meta_kernel(aten.bernoulli.out)
def bernoulli_into(input: Tensor, *, out: Tensor, **_options: Any) -> Tensor:
    """aten/src/ATen/native/Distributions.cpp: of any dtype."""
    return out.resize_(input.shape)


@register_meta_kernel(aten.normal.float_float)
def normal_of_size(_mean: float, _std: float, size: list[int], **options: Any) -> Tensor:
    """The same."""
    options.pop("generator", None)
    return torch.empty(size, **options)


@register_meta_kernel(aten.native_dropout.default, devices=("cpu",))
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/Dropout.cpp: an empty input is its own result."""
    if input.numel() == 0:
        return input, torch.empty_like(input)
    mask = torch.empty_like(input, dtype=torch.bool)
    return input.clone() if train is False else input.mul(mask), mask


@register_meta_kernel(aten.normal.Tensor_float, aten.normal.float_Tensor)
def normal(mean: Any, std: Any = 1.0, **_options: Any) -> Tensor:
    """aten/src/ATen/native/DistributionTemplates.h, normal_impl: contiguous, of its dtype."""
    parameter = mean if isinstance(mean, Tensor) else std
    return parameter.new_empty(parameter.shape)


@register_meta_kernel(aten.normal.Tensor_Tensor)
def normal_of_tensors(mean: Tensor, std: Tensor, **_options: Any) -> Tensor:
    """The same function: of the mean's dtype."""
    return mean.new_empty(torch.broadcast_shapes(mean.shape, std.shape))


@register_meta_kernel(aten._sample_dirichlet.default, aten.binomial.default)
def draw_like_first(parameter: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """aten/src/ATen/native/Distributions.cpp: one draw for each parameter."""
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)

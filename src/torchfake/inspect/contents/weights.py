"""The size of a model's weights when they are quantized.

Input: a module, fake or real, and the name of a scheme. Output: :class:`Weights`. Invariant: bytes
are exactly those of the codes and scales that the scheme's library holds; the model is not run, so
activations are not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from torchfake._core.gpu_profiles import CUDA, CudaProfile, named_profiles
from torchfake.inspect.allocator.outside import CONTEXT_BYTES, MARGIN_BYTES, verdict_of
from torchfake.inspect.contents.schemes import Scheme, scheme_named
from torchfake.inspect.records.record import Record
from torchfake.observe import held_bytes

RESERVED_BYTES = CONTEXT_BYTES + MARGIN_BYTES


class WeightsFit(NamedTuple):
    """Whether the weights alone fit on a GPU."""

    gpu: str  # the profile's name
    total_bytes: int
    headroom_bytes: int  # left beside the weights, the CUDA context and a margin
    is_refused: bool = False  # whether the library's kernels do not run on the GPU

    @property
    def fits(self) -> bool:
        """Whether the weights fit, without activations and caches, and run."""
        return self.verdict != "no"

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"``: less than 5 % of the memory is left."""
        return "no" if self.is_refused else verdict_of(self.headroom_bytes, self.total_bytes)


@dataclass(frozen=True, repr=False)
class Weights(Record):
    """The size of a model's weights, quantized and unquantized."""

    scheme: str  # "nf4", "int4", "int8" or "fp8"
    library: str  # the library that quantizes, and its call
    held: str  # a description of what the library holds of a weight
    num_quantized: int  # parameters that are quantized
    num_kept: int  # parameters that are not: embeddings, norms, the output layer
    num_bytes: int  # of all parameters and buffers, quantized
    unquantized_bytes: int  # of all parameters and buffers, unquantized
    fits: tuple[WeightsFit, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as a dict for JSON."""
        derived = ("fits", "verdict")
        fits = [
            {**each._asdict(), **{name: getattr(each, name) for name in derived}}
            for each in self.fits
        ]
        total = self.num_quantized + self.num_kept
        return {**self.__dict__, "num_parameters": total, "fits": fits}


def weights(module: nn.Module, scheme: str, *gpus: str | CudaProfile) -> Weights:
    """Return the size of the weights of `module` quantized by `scheme`, and the GPUs they fit on.

    The weights of ``nn.Linear`` layers are quantized; by bitsandbytes, also those of transformers'
    ``Conv1D``. In transformers models the output layer, tied weights and the last layer are not
    quantized, as in transformers; experts stored as one tensor are by GPTQ and AWQ alone.

    Args:
        module: a module with fake or real tensors; it is not changed.
        scheme: ``"nf4"`` (bitsandbytes), ``"int4"``, ``"int8"`` or ``"fp8"`` (torchao).
        gpus: profiles or their names.

    Raises:
        InputsError: if the scheme does not exist.
        DeviceError: if a GPU does not exist.

    >>> found = weights(nn.Linear(4096, 4096), "nf4", "h100")
    >>> found.unquantized_bytes, found.num_bytes, found.fits[0].fits
    (67125248, 8672324, True)
    """
    return weights_by(module, scheme, scheme_named(scheme), named_profiles(gpus))


def unquantized(module: nn.Module) -> Weights:
    """The weights without quantization, for an unknown scheme."""
    return weights_by(module, "", Scheme("", "", "", lambda rows, columns, itemsize: None, ""), {})


def weights_by(
    module: nn.Module, name: str, scheme: Scheme, gpus: Mapping[str, CudaProfile]
) -> Weights:
    """The size of the weights of a module quantized by a scheme, and whether they fit on GPUs."""
    before = {id(t): held_bytes(t) for t in (*module.parameters(), *module.buffers())}
    after, num_quantized = dict(before), 0
    for weight, found in _quantized_bytes(module, scheme):
        if found is not None:
            after[id(weight)] = found
            num_quantized += weight.numel()
    total = sum(after.values())
    fits = [
        WeightsFit(
            key,
            gpu.total_memory,
            gpu.total_memory - RESERVED_BYTES - total,
            is_refused=gpu.backend == CUDA and (gpu.major, gpu.minor) < scheme.least_capability,
        )
        for key, gpu in gpus.items()
    ]
    num_kept = sum(p.numel() for p in module.parameters()) - num_quantized
    counts = num_quantized, num_kept, total, sum(before.values())
    return Weights(name, scheme.library, scheme.held, *counts, tuple(fits))


def _quantized_bytes(module: nn.Module, scheme: Scheme) -> Iterator[tuple[Any, int | None]]:
    """The weights that a scheme quantizes, each with its bytes then; None: it is kept."""
    for _, layer, shape in quantized_layers(module, scheme):
        yield layer.weight, scheme.num_bytes(*shape, layer.weight.dtype.itemsize)
    if scheme.of_expert is None:
        return
    for stack, number, shape in _expert_stacks(module, scheme):
        each = scheme.of_expert(*shape, stack.dtype.itemsize)
        yield stack, None if each is None else number * each


def quantized_layers(
    module: nn.Module, scheme: Scheme
) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """The layers whose weights are quantized, each weight once: names, layers, and the numbers of
    rows and columns.
    """
    is_kept = _kept(module, scheme)
    seen: set[int] = set()
    for name, child in module.named_modules():
        is_conv1d = scheme.by_bitsandbytes and type(child).__name__ == "Conv1D"
        if is_kept(name) or not (is_conv1d or _is_linear(child)):
            continue
        weight = child.weight
        if isinstance(weight, nn.Parameter) and weight.dim() == 2 and id(weight) not in seen:
            seen.add(id(weight))
            columns, rows = reversed(weight.shape) if not is_conv1d else weight.shape
            yield name, child, (rows, columns)


def _expert_stacks(
    module: nn.Module, scheme: Scheme
) -> Iterator[tuple[nn.Parameter, int, tuple[int, int]]]:
    """The weights of experts stored as one tensor, each with the number of its matrices, and their
    rows and columns. A gate and an up projection that are one tensor are two matrices.
    """
    is_kept = _kept(module, scheme)
    for name, experts in module.named_modules():
        if not name.endswith("experts") or is_kept(name):
            continue
        for key, stack in experts.named_parameters(recurse=False):
            if stack.dim() == 3:
                number, rows, columns = stack.shape
                if getattr(experts, "is_transposed", False):
                    rows, columns = columns, rows
                parts = 2 if "gate_up" in key else 1
                yield stack, number * parts, (rows // parts, columns)


def _is_linear(module: nn.Module) -> bool:
    is_fixed = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, nn.Linear) and not is_fixed


def _kept(module: nn.Module, scheme: Scheme) -> Callable[[str], bool]:
    """A function of a layer's name: whether transformers leaves the layer unquantized. It follows
    ``get_modules_to_not_convert`` and ``should_convert_module`` of transformers' quantizers.
    """
    if not hasattr(module, "get_output_embeddings"):
        return lambda name: False
    every = [(name, id(p)) for name, p in module.named_parameters(remove_duplicate=False)]
    number = Counter(key for _, key in every)
    kept = {name for name, key in every if number[key] > 1}  # tied
    layers = set(scheme.kept)
    if scheme.keeps_usual:
        model: Any = module
        output = model.get_output_embeddings()
        kept |= {name for name, _ in every[-1:]}
        layers |= {name for name, child in module.named_modules() if child is output}
    if scheme.package != "torchao":  # of which transformers compares names with ".weight"
        layers |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
    layers |= {name.removesuffix(".weight") for name in kept}
    layers.discard("")
    begins = [re.compile(rf"(?:{layer})(?:(?<=\.)|(?=\.|$))") for layer in layers]
    ends = tuple(layers)
    return lambda name: name.endswith(ends) or any(form.match(name) for form in begins)

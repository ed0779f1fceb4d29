"""What the weights of a model take when they are quantized, without running it.

Input: a module, fake or real, and the name of a scheme. Output: :class:`Weights`. Invariant: bytes
are those that the scheme's library holds, codes and scales, to the byte; no kernel is run, so
nothing is said of activations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from torchfake._core.gpu_profiles import CudaProfile, named_profiles
from torchfake.errors import InputsError
from torchfake.inspect.allocator.outside import CONTEXT_BYTES, MARGIN_BYTES
from torchfake.inspect.base_record import Record
from torchfake.inspect.describe.held_memory import held_bytes

RESERVED_BYTES = CONTEXT_BYTES + MARGIN_BYTES


class Scheme(NamedTuple):
    """How a library quantizes the weight of a layer."""

    library: str  # and its call
    held: str  # what it holds of a weight
    num_bytes: Callable[[int, int, int], int | None]  # of out, in and bytes of a value; None: kept
    source: str
    by_bitsandbytes: bool = False  # it takes Conv1D as well, and keeps what is kept in float32
    kept: tuple[str, ...] = ()  # names of further layers that stay as they are


_NF4_BLOCK, _NF4_GROUP = 64, 256
_NF4_TABLES = 16 * 4 + 256 * 4 + 4  # codes of values and of scales, and the mean of scales


def _nf4(rows: int, columns: int, itemsize: int) -> int:
    blocks = -(-rows * columns // _NF4_BLOCK)
    return -(-rows * columns // 2) + blocks + 4 * -(-blocks // _NF4_GROUP) + _NF4_TABLES


_INT4_GROUP = 128


def _int4(rows: int, columns: int, itemsize: int) -> int | None:
    if columns % _INT4_GROUP:
        return None
    return rows * columns // 2 + 2 * itemsize * rows * columns // _INT4_GROUP


SCHEMES = {
    "nf4": Scheme(
        "bitsandbytes, BitsAndBytesConfig(load_in_4bit, nf4, double quantization)",
        "4 bits per value, an 8-bit scale per block of 64 values, a float32 scale per 256 blocks",
        _nf4,
        "bitsandbytes 0.50, functional.quantize_4bit",
        by_bitsandbytes=True,
    ),
    "int4": Scheme(
        "torchao, Int4WeightOnlyConfig()",
        "4 bits a value, a scale and a zero point for each group of 128 in the model's dtype; "
        "layers whose width is no multiple of 128 are kept",
        _int4,
        "torchao 0.18, Int4Tensor",
    ),
    "int8": Scheme(
        "torchao, Int8WeightOnlyConfig()",
        "8 bits a value, a scale in float32 and a zero point in 8 bits for each row",
        lambda rows, columns, itemsize: rows * columns + 5 * rows,
        "torchao 0.18, Int8Tensor",
    ),
    "fp8": Scheme(
        "torchao, Float8WeightOnlyConfig()",
        "8 bits a value (e4m3), a scale in float32 for each row",
        lambda rows, columns, itemsize: rows * columns + 4 * rows,
        "torchao 0.18, Float8Tensor",
    ),
}  # fmt: skip


def scheme_of_config(config: Mapping[str, Any]) -> tuple[str, Scheme] | None:
    """The name and the scheme of a ``quantization_config``; None of one whose bytes are not known.

    Args:
        config: of bitsandbytes, or ``"fp8"`` (blocks with a scale in float32, as of DeepSeek-V3).
    """
    method = config.get("quant_method", "")
    method = str(getattr(method, "value", method)).lower()  # an enum, in an object of transformers
    if method == "bitsandbytes" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        kept = tuple(config.get("llm_int8_skip_modules") or ())
        name, scheme = _of_bitsandbytes(config)
        return name, scheme._replace(kept=kept)
    block = config.get("weight_block_size")
    if method == "fp8" and block:
        kept = tuple(config.get("modules_to_not_convert") or ())
        return "fp8", Scheme(
            "transformers, FineGrainedFP8Config()",
            f"8 bits a value (e4m3), a scale in float32 for each block of {block[0]} x {block[1]}",
            lambda rows, columns, _: (
                rows * columns + 4 * -(-rows // block[0]) * -(-columns // block[1])
            ),
            "transformers 5.23, integrations/finegrained_fp8.py",
            kept=kept,
        )
    return None


def _of_bitsandbytes(config: Mapping[str, Any]) -> tuple[str, Scheme]:
    if config.get("load_in_8bit"):
        return "int8", Scheme(
            "bitsandbytes, BitsAndBytesConfig(load_in_8bit)",
            "8 bits a value, a scale in float32 for each row",
            lambda rows, columns, _: rows * columns + 4 * rows,
            "bitsandbytes 0.50, nn.Int8Params",
            by_bitsandbytes=True,
        )
    name = str(config.get("bnb_4bit_quant_type", "fp4"))
    if config.get("bnb_4bit_use_double_quant"):
        return name, SCHEMES["nf4"]
    return name, SCHEMES["nf4"]._replace(
        library=f"bitsandbytes, BitsAndBytesConfig(load_in_4bit, {name})",
        held="4 bits per value, a float32 scale per block of 64 values",
        num_bytes=lambda rows, columns, _: (
            -(-rows * columns // 2) + 4 * -(-rows * columns // _NF4_BLOCK) + 16 * 4
        ),
    )


class WeightsFit(NamedTuple):
    """Whether the weights alone fit on a GPU."""

    gpu: str  # the profile's name
    total_bytes: int
    headroom_bytes: int  # beside the weights, the CUDA context and a margin

    @property
    def fits(self) -> bool:
        """Whether they do: activations and caches take more."""
        return self.headroom_bytes >= 0


@dataclass(frozen=True, repr=False)
class Weights(Record):
    """The weights of a model, quantized and not."""

    scheme: str  # "nf4", "int4", "int8" or "fp8"
    library: str  # whose scheme it is
    held: str  # of each weight
    num_quantized: int  # parameters
    num_kept: int  # parameters that stay as they are: embeddings, norms, the output layer
    num_bytes: int  # of all parameters and buffers, quantized
    unquantized_bytes: int  # of the same, as they are
    fits: tuple[WeightsFit, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as a dict for JSON."""
        fits = [{**each._asdict(), "fits": each.fits} for each in self.fits]
        return {**self.__dict__, "fits": fits}


def weights(module: nn.Module, scheme: str, *gpus: str | CudaProfile) -> Weights:
    """Return the size of the weights of `module` quantized by `scheme`, and the GPUs they fit on.

    The weights of ``nn.Linear`` layers are quantized; by bitsandbytes, also those of transformers'
    ``Conv1D``. In transformers models the output layer, tied weights and the last layer are not
    quantized, as in transformers; neither are experts stored as one tensor.

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
    """The weights as they are, where nothing is known of a scheme."""
    return weights_by(module, "", Scheme("", "", lambda rows, columns, itemsize: None, ""), {})


def scheme_named(name: str) -> Scheme:
    """The scheme that ``--weights`` names.

    Raises:
        InputsError: if there is none.
    """
    if name not in SCHEMES:
        raise InputsError(f"weights={name!r} is not {', '.join(SCHEMES)}")
    return SCHEMES[name]


def weights_by(
    module: nn.Module, name: str, scheme: Scheme, gpus: Mapping[str, CudaProfile]
) -> Weights:
    """The weights quantized by a scheme."""
    before = {id(t): held_bytes(t) for t in (*module.parameters(), *module.buffers())}
    after, num_quantized = dict(before), 0
    takes = quantized_parameters(module, scheme.kept, by_bitsandbytes=scheme.by_bitsandbytes)
    for parameter, shape in takes:
        found = scheme.num_bytes(*shape, parameter.dtype.itemsize)
        if found is not None:
            after[id(parameter)] = found
            num_quantized += parameter.numel()
    total = sum(after.values())
    fits = [
        WeightsFit(key, gpu.total_memory, gpu.total_memory - RESERVED_BYTES - total)
        for key, gpu in gpus.items()
    ]
    num_kept = sum(p.numel() for p in module.parameters()) - num_quantized
    counts = num_quantized, num_kept, total, sum(before.values())
    return Weights(name, scheme.library, scheme.held, *counts, tuple(fits))


def quantized_parameters(
    module: nn.Module, kept: Sequence[str] = (), *, by_bitsandbytes: bool = False
) -> Iterator[tuple[nn.Parameter, tuple[int, int]]]:
    """The weights that are quantized, each once, and their rows and columns."""
    is_kept = _kept(module, kept, by_bitsandbytes=by_bitsandbytes)
    seen: set[int] = set()
    for name, child in module.named_modules():
        is_conv1d = by_bitsandbytes and type(child).__name__ == "Conv1D"
        if is_kept(name) or not (is_conv1d or _is_linear(child)):
            continue
        weight = child.weight
        if isinstance(weight, nn.Parameter) and weight.dim() == 2 and id(weight) not in seen:
            seen.add(id(weight))
            yield weight, (weight.shape[0], weight.shape[1])


def _is_linear(module: nn.Module) -> bool:
    is_fixed = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, nn.Linear) and not is_fixed


def _kept(
    module: nn.Module, also: Sequence[str], *, by_bitsandbytes: bool
) -> Callable[[str], bool]:
    """Whether transformers does not quantize a layer, by its name: ``get_keys_to_not_convert`` and
    ``should_convert_module`` of its quantizers.
    """
    if not hasattr(module, "get_output_embeddings"):
        return lambda name: False
    every = [(name, id(p)) for name, p in module.named_parameters(remove_duplicate=False)]
    number = Counter(key for _, key in every)
    kept = {name for name, key in every if number[key] > 1} | {name for name, _ in every[-1:]}
    model: Any = module
    output = model.get_output_embeddings()
    layers = {name.removesuffix(".weight") for name in kept} | set(also)
    layers |= {name for name, child in module.named_modules() if child is output}
    if by_bitsandbytes:
        layers |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
    layers.discard("")
    begins = [re.compile(rf"(?:{layer})(?:(?<=\.)|(?=\.|$))") for layer in layers]
    ends = tuple(layers)
    return lambda name: name.endswith(ends) or any(form.match(name) for form in begins)

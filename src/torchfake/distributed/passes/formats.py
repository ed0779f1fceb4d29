"""How a serving engine stores weights, and which products it then computes.

Input: the name of a format, or a checkpoint's ``quantization_config``. Output: a :class:`Format`;
bytes of a weight; the rate of products. Invariant: every format has its source; layers that engines
keep (embeddings, the head, routers, norms) and those that a checkpoint names are not quantized.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from torchfake._core.arguments import check_text
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.passes.rank_record import LayerWork, RankWork
from torchfake.errors import InputsError, did_you_mean, listed
from torchfake.inspect.contents.schemes import method_of
from torchfake.inspect.records.units import short_name
from torchfake.inspect.serve import INTEGERS
from torchfake.inspect.timing.hardware import Hardware

MODEL, FP8, INT8, FP4 = "model", "fp8", "int8", "fp4"
"""The operands of products: the model's dtype (weights are expanded in the kernel), or narrower."""

_AMPERE, _ADA, _BLACKWELL = (8, 0), (8, 9), (10, 0)

_CORES = {MODEL: (0, 0), INT8: (7, 5), FP8: _ADA, FP4: _BLACKWELL}
"""The compute capability from which on tensor cores multiply such operands. Kernels for older GPUs
expand them to the model's dtype (vLLM's Marlin)."""


class Format(NamedTuple):
    """How the weight of one linear layer is stored and multiplied."""

    name: str
    bits: int  # of a value
    block: tuple[int | None, int | None]  # rows and columns that share a scale; None: all
    scale_bits: int
    zero_bits: int  # of the zero point of each block
    products: str  # the operands: MODEL, FP8, INT8 or FP4
    least_capability: tuple[int, int]  # of the GPUs that have kernels for it
    source: str
    kept: tuple[str, ...] = ()  # names and patterns of layers that a checkpoint does not quantize

    def num_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix with its scales and zero points."""
        high, wide = self.block
        blocks = (-(-rows // high) if high else 1) * (-(-columns // wide) if wide else 1)
        return _bytes_of(rows * columns * self.bits) + _bytes_of(
            blocks * (self.scale_bits + self.zero_bits)
        )

    def operands_on(self, gpu: CudaProfile) -> str:
        """The operands that the tensor cores of a GPU multiply."""
        return self.products if (gpu.major, gpu.minor) >= _CORES[self.products] else MODEL


def _bytes_of(bits: int) -> int:
    return -(-bits // 8)


FORMATS = {
    found.name: found
    for found in (
        Format("fp8", 8, (1, None), 32, 0, FP8, _ADA,
               "vLLM, compressed-tensors FP8 W8A8, channel strategy; Meta's FBGEMM FP8"),
        Format("fp8-weights", 8, (1, None), 32, 0, MODEL, _AMPERE, "vLLM, FP8 Marlin (W8A16)"),
        Format("fp8-block", 8, (128, 128), 32, 0, FP8, _ADA, "DeepSeek-V3, section 3.3.2"),
        Format("int8", 8, (1, None), 32, 0, INT8, (7, 5), "vLLM, compressed-tensors INT8 W8A8"),
        Format("awq", 4, (1, 128), 16, 4, MODEL, (7, 5), "AutoAWQ, WQLinear_GEMM"),
        Format("gptq", 4, (1, 128), 16, 4, MODEL, (7, 0),
               "gptqmodel, BaseQuantLinear without act-order"),
        Format("mxfp4", 4, (1, 32), 8, 0, FP4, _AMPERE,
               "OCP Microscaling Formats v1.0, section 5.3"),
        Format("nvfp4", 4, (1, 16), 8, 0, FP4, _BLACKWELL,
               "NVIDIA TensorRT Model Optimizer, NVFP4"),
    )
}  # fmt: skip

_KEPT = re.compile(
    r"(embed|wte|wpe|lm_head|embed_out|\bgate\.|router|shared_expert_gate|norm|bias$|A_log$)"
)
"""Parts of names of layers and parameters that the recipes of vLLM and TensorRT-LLM do not
quantize."""

_OF_THE_MODEL = ("bf16", "fp16", "model")

_SUGGESTED = ("fp8", "int8", "nvfp4", "awq")
"""Formats that are suggested, those that lose least first."""


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether engines quantize the parameter of this name: a matrix of a linear layer, or a stack
    of the matrices of experts.
    """
    last = ".".join(name.split(".")[-2:])
    return len(shape) in (2, 3) and min(shape[-2:]) > 1 and not _KEPT.search(last)


def format_named(name: str | None) -> Format | None:
    """The format with a name; None for the model's own dtype.

    Raises:
        TypeError: if it is no string.
        InputsError: if there is no such format.
    """
    if name is not None:
        check_text(name, "weights", "fp8")
    if name is None or name in _OF_THE_MODEL:
        return None
    if name not in FORMATS:
        bits = re.search(r"\d+", name)
        alike = [k for k, found in FORMATS.items() if bits and str(found.bits) == bits[0]]
        hint = f"; did you mean {listed(alike)}?" if alike else did_you_mean(name, FORMATS)
        hint = hint or f": give one of bf16, {', '.join(FORMATS)}"
        raise InputsError(f"weights={name!r} is no format that is served{hint}")
    return FORMATS[name]


def with_fewer_bits(found: Format | None) -> list[str]:
    """The formats to suggest that have fewer bits than one, or than the model's own dtype; the one
    with most bits first, of equal ones the one whose products are fastest.
    """
    bits = 16 if found is None else found.bits
    return [name for name in _SUGGESTED if FORMATS[name].bits < bits]


def check_kernels(found: Format, gpu: CudaProfile) -> None:
    """Refuse a format that a GPU has no kernels for, with those that it has."""
    if (gpu.major, gpu.minor) < found.least_capability:
        needs = ".".join(map(str, found.least_capability))
        others = [key for key in FORMATS if has_kernels(gpu, key)]
        raise InputsError(
            f"{gpu.name} has no kernels for weights={found.name!r}, which need compute capability "
            f"{needs}: give one of bf16, {', '.join(others)}"
        )


def shown_name(found: Format | None, work: RankWork, gpu: CudaProfile) -> str:
    """The name of a format; with the dtype of products, where the GPU has none of the format's."""
    name = short_name(work.dtype)
    if found is None:
        return name
    expands = found.products != MODEL and found.operands_on(gpu) == MODEL
    return f"{found.name}, multiplied in {name}" if expands else found.name


def of_cache(name: str | None, gpu: CudaProfile) -> list[str]:
    """Notes on a cache in a dtype: what engines do with it, and what no time contains.

    Engines without fp8 in tensor cores expand it (vllm-project/vllm#3965); integers are expanded by
    all of them. Int4 is LMDeploy's (docs/en/quantization/kv_quant.md).
    """
    is_fp8 = name is not None and name.startswith(("fp8", "float8"))
    if name not in INTEGERS and (not is_fp8 or (gpu.major, gpu.minor) >= _CORES[FP8]):
        return []
    engines = "; LMDeploy has such a cache, vLLM and TensorRT-LLM have none" * (name == "int4")
    return [
        f"attention expands a cache in {name} on this GPU, for a time not counted here{engines}"
    ]


def has_kernels(gpu: CudaProfile, name: str) -> bool:
    """Whether a GPU has kernels for the format with a name."""
    least = FORMATS[name].least_capability if name in FORMATS else (0, 0)
    return (gpu.major, gpu.minor) >= least


def format_of_config(config: Mapping[str, Any]) -> Format | None:
    """The format that a checkpoint's ``quantization_config`` describes, with its groups and the
    layers that it keeps; None if it is not known. GPUs without tensor cores for fp8 expand it.
    """
    found = _described(config)
    if found is None:
        return None
    keys = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
    kept = [str(name) for key in keys for name in config.get(key) or ()]
    least = _AMPERE if found.products == FP8 else found.least_capability
    return found._replace(kept=tuple(dict.fromkeys(kept)), least_capability=least)


def _described(config: Mapping[str, Any]) -> Format | None:
    method = method_of(config)
    group = config.get("group_size") or config.get("q_group_size")
    if method == "fp8":
        if block := config.get("weight_block_size"):
            return FORMATS["fp8-block"]._replace(block=tuple(block))
        return FORMATS["fp8"]._replace(block=(None, None))
    if method == "fbgemm_fp8":
        return FORMATS["fp8"]
    if method in ("awq", "gptq"):
        bits = config.get("bits") or config.get("w_bit") or 4
        columns = None if group == -1 else group or 128
        return FORMATS[method]._replace(bits=bits, block=(1, columns), zero_bits=bits)
    if method == "mxfp4":
        return FORMATS["mxfp4"]
    if method in ("modelopt", "modelopt_fp4"):
        known = {"NVFP4": "nvfp4", "FP8": "fp8", "": "nvfp4" if "fp4" in method else ""}
        found = FORMATS.get(known.get(str(config.get("quant_algo") or "").upper(), ""))
        is_whole = found is not None and found.name == "fp8"
        return found._replace(block=(None, None)) if found and is_whole else found
    if method == "compressed-tensors":
        groups = list((config.get("config_groups") or {}).values())
        return _of_scheme(groups[0]) if len(groups) == 1 else None
    return None


def _of_scheme(scheme: Mapping[str, Any]) -> Format | None:
    """The format of one group of layers of compressed-tensors."""
    weights = scheme.get("weights") or {}
    kind, bits, group = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    strategy = weights.get("strategy") or ("group" if group else "tensor")
    known: dict[Any, str] = {
        ("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "gptq", ("float", 4): "nvfp4",
    }  # fmt: skip
    name = known.get((kind, bits))
    if name is None:
        return None
    if (kind, bits, group) == ("float", 4, 32):
        name = "mxfp4"
    blocks = {
        "tensor": (None, None), "channel": (1, None), "block": weights.get("block_structure"),
    }  # fmt: skip
    found = FORMATS["fp8-block" if (name, strategy) == ("fp8", "block") else name]
    found = found._replace(block=tuple(blocks.get(strategy) or (1, group)))
    if weights.get("symmetric", True):
        found = found._replace(zero_bits=0)
    if not scheme.get("input_activations"):
        found = found._replace(products=MODEL, least_capability=_AMPERE)
    return found


def is_kept(name: str, patterns: Sequence[str]) -> bool:
    """Whether a checkpoint keeps the layer of this parameter: a pattern is a part of the layer's
    name between dots (transformers), has ``*`` (Model Optimizer), or is a regular expression behind
    ``re:`` (compressed-tensors).
    """
    layer = name.rpartition(".")[0]
    return any(
        re.match(pattern[3:], layer) is not None
        if pattern.startswith("re:")
        else fnmatchcase(f".{layer}.", f"*.{pattern}.*")
        for pattern in patterns
    )


def keeping(work: RankWork, patterns: Sequence[str]) -> RankWork:
    """The work of a rank whose checkpoint keeps the layers of these names in the model's dtype.

    Layers that are alike share the names of the first of them; each is asked by its own.
    """
    if not patterns:
        return work
    numbers = Counter[str]()
    made: dict[Any, LayerWork] = {}
    layers = []
    for layer in work.layers:
        path = _path_of(layer)
        own = f"{path}.{numbers[path]}."
        numbers[path] += 1
        kept = frozenset(
            weight.name
            for weight in layer.held
            if is_kept(re.sub(rf"^{re.escape(path)}\.\d+\.", own, weight.name), patterns)
        )
        layers.append(made.setdefault((id(layer), kept), _with_kept(layer, kept)))
    before, after = (_keeping_of(part, patterns) for part in (work.before, work.after))
    towers = tuple(_keeping_of(layer, patterns) for layer in work.towers)
    return replace(work, layers=tuple(layers), before=before, after=after, towers=towers)


def _keeping_of(part: LayerWork, patterns: Sequence[str]) -> LayerWork:
    return _with_kept(part, frozenset(w.name for w in part.held if is_kept(w.name, patterns)))


def _path_of(layer: LayerWork) -> str:
    """The name of the list that a layer is in."""
    found = (re.match(r"(.*?)\.\d+\.", weight.name) for weight in layer.held)
    return next((match[1] for match in found if match), "")


def _with_kept(layer: LayerWork, names: frozenset[str]) -> LayerWork:
    held = tuple(replace(weight, is_kept=weight.name in names) for weight in layer.held)
    products = tuple(
        replace(each, weight=replace(each.weight, is_kept=each.weight.name in names))
        for each in layer.products
    )
    return replace(layer, held=held, products=products)


def rate_of(products: str, dtype: torch.dtype, hardware: Hardware) -> float:
    """FLOP/s of products, as the datasheet states them for dense tensors.

    Tensor cores multiply int8 at twice the rate of float16 from Turing to Hopper (NVIDIA's
    datasheets), and 4-bit floats at twice the rate of fp8 from Blackwell on.
    """
    half = hardware.flops.get(dtype, hardware.flops[torch.float16])
    fp8 = hardware.flops.get(torch.float8_e4m3fn, half)
    rates = {FP8: fp8, INT8: 2 * hardware.flops[torch.float16], FP4: 2 * fp8}
    return rates.get(products, half)

"""How a serving engine stores weights, and which products it then computes.

Input: the name of a format, the shape of a weight. Output: bytes; the rate of products. Invariant:
every format has its source; layers that engines keep (embeddings, the head, routers, norms) are not
quantized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import InputsError, did_you_mean
from torchfake.inspect.timing.hardware import Hardware

PRODUCTS = ("model", "fp8", "int8", "fp4")
"""The operands of products: the model's dtype (weights are expanded in the kernel), or narrower."""


class Format(NamedTuple):
    """How the weight of one linear layer is stored and multiplied."""

    held: str  # a description
    num_bytes: Callable[[int, int, int], int]  # of rows, columns and the itemsize of the model
    products: str  # one of PRODUCTS
    least_capability: tuple[int, int]  # of the GPUs that have kernels for it
    source: str


def _of_bits(bits: int, group: int | None, scale_bits: int, zero_bits: int = 0) -> Any:
    """Bytes of codes, and of a scale and a zero point for each group of columns; None: of rows."""

    def num_bytes(rows: int, columns: int, itemsize: int) -> int:
        groups = rows * (1 if group is None else -(-columns // group))
        return -(-rows * columns * bits // 8) + -(-groups * (scale_bits + zero_bits) // 8)

    return num_bytes


def _in_blocks(rows: int, columns: int, itemsize: int) -> int:
    return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)


_ANY, _AMPERE, _ADA, _HOPPER = (7, 0), (8, 0), (8, 9), (9, 0)

FORMATS = {
    "fp8": Format(
        "8 bits a value (e4m3), a float32 scale for each row; products in fp8",
        _of_bits(8, None, 32), "fp8", _ADA,
        "vLLM, compressed-tensors FP8 W8A8, channel strategy"),
    "fp8-weights": Format(
        "8 bits a value (e4m3), a float32 scale for each row; products in the model's dtype",
        _of_bits(8, None, 32), "model", _AMPERE, "vLLM, FP8 Marlin (W8A16)"),
    "fp8-block": Format(
        "8 bits a value (e4m3), a float32 scale for each block of 128 x 128; products in fp8",
        _in_blocks, "fp8", _ADA, "DeepSeek-V3, section 3.3.2"),
    "int8": Format(
        "8 bits a value, a float32 scale for each row; products in int8 (w8a8)",
        _of_bits(8, None, 32), "int8", (7, 5), "vLLM, compressed-tensors INT8 W8A8"),
    "awq": Format(
        "4 bits a value; a 16-bit scale and a 4-bit zero point for each group of 128",
        _of_bits(4, 128, 16, 4), "model", (7, 5), "AutoAWQ, WQLinear_GEMM"),
    "gptq": Format(
        "4 bits a value; a 16-bit scale and a 4-bit zero point for each group of 128",
        _of_bits(4, 128, 16, 4), "model", (7, 0), "gptqmodel, BaseQuantLinear without act-order"),
    "mxfp4": Format(
        "4 bits a value (e2m1), an 8-bit scale for each group of 32",
        _of_bits(4, 32, 8), "fp4", _AMPERE, "OCP Microscaling Formats v1.0, section 5.3"),
    "nvfp4": Format(
        "4 bits a value (e2m1), an 8-bit scale (e4m3) for each group of 16",
        _of_bits(4, 16, 8), "fp4", (10, 0), "NVIDIA TensorRT Model Optimizer, NVFP4"),
}  # fmt: skip

_KEPT = re.compile(r"(embed|wte|wpe|lm_head|embed_out|\bgate$|router|shared_expert_gate|norm)")
"""The ends of names of layers that the recipes of vLLM and TensorRT-LLM do not quantize."""

_OF_THE_MODEL = ("bf16", "fp16", "model")

_FP4_FROM = (10, 0)
"""Tensor cores multiply 4-bit floats from this compute capability on; before, their kernels expand
them to the model's dtype."""


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether engines quantize the parameter of this name: a matrix of a linear layer, or a stack
    of the matrices of experts.
    """
    owner = name.rpartition(".")[0] or name
    return len(shape) in (2, 3) and min(shape[-2:]) > 1 and not _KEPT.search(_last(owner, name))


def _last(owner: str, name: str) -> str:
    """The last part of the name of a layer, and the name of the parameter in it."""
    return owner.rpartition(".")[2] + "." + name.rpartition(".")[2]


def format_named(name: str | None, gpu: CudaProfile | None) -> Format | None:
    """The format with a name; None for the model's own dtype.

    Raises:
        InputsError: if there is no such format, or the GPU has no kernels for it.
    """
    if name is None or name in _OF_THE_MODEL:
        return None
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS) or f": give one of bf16, {', '.join(FORMATS)}"
        raise InputsError(f"weights={name!r} is no format that is served{hint}")
    found = FORMATS[name]
    if gpu is not None and not has_kernels(gpu, name):
        needs = ".".join(map(str, found.least_capability))
        others = [key for key in FORMATS if has_kernels(gpu, key)]
        raise InputsError(
            f"{gpu.name} has no kernels for weights={name!r}, which need compute capability "
            f"{needs}: give one of bf16, {', '.join(others)}"
        )
    return found


def has_kernels(gpu: CudaProfile, name: str) -> bool:
    """Whether a GPU has kernels for the format with a name."""
    least = FORMATS[name].least_capability if name in FORMATS else (0, 0)
    return (gpu.major, gpu.minor) >= least


def format_of_config(config: Mapping[str, Any]) -> str | None:
    """The format that a checkpoint's ``quantization_config`` names; None if it is not known."""
    named = config.get("quant_method", "")
    method = str(getattr(named, "value", named)).lower()  # may be an enum of transformers
    if method == "fp8":
        return "fp8-block" if config.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "mxfp4"):
        return method
    if method in ("modelopt", "modelopt_fp4"):
        return "nvfp4" if "FP4" in str(config.get("quant_algo", "")).upper() else "fp8"
    if method == "compressed-tensors":
        groups = config.get("config_groups") or {}
        first: Any = next(iter(groups.values()), {})
        weights = first.get("weights") or {}
        kind, bits = weights.get("type"), weights.get("num_bits")
        known: dict[str, str] = {"float8": "fp8", "int8": "int8", "int4": "gptq"}
        return known.get(f"{kind}{bits}")
    return None


def rate_of(products: str, dtype: torch.dtype, gpu: CudaProfile, hardware: Hardware) -> float:
    """FLOP/s of products, as the datasheet states them for dense tensors.

    Tensor cores multiply int8 at twice the rate of float16 from Turing to Hopper (NVIDIA's
    datasheets), and 4-bit floats at twice the rate of fp8 from Blackwell on.
    """
    half = hardware.flops.get(dtype, hardware.flops[torch.float16])
    fp8 = hardware.flops.get(torch.float8_e4m3fn, half)
    if products == "fp8":
        return fp8
    if products == "int8":
        return 2 * hardware.flops[torch.float16]
    if products == "fp4" and (gpu.major, gpu.minor) >= _FP4_FROM:
        return 2 * fp8
    return half

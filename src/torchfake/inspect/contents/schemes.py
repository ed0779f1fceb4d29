"""How libraries quantize the weight of a layer, and how many bytes they hold of it.

Input: the name of a scheme, or a ``quantization_config``. Output: a :class:`Scheme`. Invariant:
bytes are exactly those of the codes and scales that the scheme's library holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torchfake.errors import InputsError

NumBytes = Callable[[int, int, int], int | None]
"""The bytes of a quantized matrix, from its rows, columns and itemsize; None: it is kept."""


class Scheme(NamedTuple):
    """How a library quantizes the weight of a layer."""

    package: str  # that quantizes, as pip and Python name it
    library: str  # the library, and the call
    held: str  # a description of what the library holds of a weight
    num_bytes: NumBytes
    source: str
    by_bitsandbytes: bool = False  # Conv1D is quantized too
    of_expert: NumBytes | None = None  # of a matrix of experts stored as one tensor; None: kept
    kept: tuple[str, ...] = ()  # names of layers that are not quantized
    keeps_usual: bool = True  # nor are the output layer and the last one
    packing: str = ""  # of the layers that run, if it is not the library's default
    least_capability: tuple[int, int] = (0, 0)  # of NVIDIA's GPUs, that the kernels need


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


def _int8_rows(rows: int, columns: int, itemsize: int) -> int:
    return rows * columns + 4 * rows


def _nf4_single(rows: int, columns: int, itemsize: int) -> int:
    return -(-rows * columns // 2) + 4 * -(-rows * columns // _NF4_BLOCK) + 16 * 4


def _packed(bits: int, group: int, *, has_order: bool) -> NumBytes:
    """Codes and zero points in words of 32 bits, scales in float16; with GPTQ, each column's group.

    Args:
        bits: of a code.
        group: columns that share a scale; all, if it is not positive.
        has_order: whether the group of each column is held, in 32 bits.
    """

    def num_bytes(rows: int, columns: int, itemsize: int) -> int | None:
        of_group = group if group > 0 else columns
        if columns % 32 or rows % 32 or columns % of_group:
            return None
        scales = columns // of_group * rows
        order = 4 * columns if has_order else 0
        return rows * columns * bits // 8 + scales * bits // 8 + 2 * scales + order

    return num_bytes


def _of_gptqmodel(method: str, bits: int, group: int) -> Scheme:
    has_order = method == "gptq"
    held = (
        f"{bits} bits a value; for each group of {group} a zero point in {bits} bits and a scale "
    )
    held = held if group > 0 else held.replace(f"group of {group}", "row")
    packed = _packed(bits, group, has_order=has_order)
    return Scheme(
        "gptqmodel",
        f"gptqmodel, {method.upper()} with {bits} bits",
        held + "in float16" + ("; 4 bytes for each column" if has_order else ""),
        packed,
        "gptqmodel, BaseQuantLinear" if has_order else "AutoAWQ, WQLinear_GEMM",
        of_expert=packed,  # each expert is quantized as layers of its own
    )


SCHEMES = {
    "nf4": Scheme(
        "bitsandbytes",
        "bitsandbytes, BitsAndBytesConfig(load_in_4bit, nf4, double quantization)",
        "4 bits per value, an 8-bit scale per block of 64 values, a float32 scale per 256 blocks",
        _nf4,
        "bitsandbytes 0.50, functional.quantize_4bit",
        by_bitsandbytes=True,
    ),
    "bnb-int8": Scheme(
        "bitsandbytes",
        "bitsandbytes, BitsAndBytesConfig(load_in_8bit)",
        "8 bits a value, a scale in float32 for each row",
        _int8_rows,
        "bitsandbytes 0.50, nn.Int8Params",
        by_bitsandbytes=True,
    ),
    "int4": Scheme(
        "torchao",
        "torchao, Int4WeightOnlyConfig()",
        "4 bits a value, a scale and a zero point for each group of 128 in the model's dtype; "
        "layers whose width is no multiple of 128 are kept",
        _int4,
        "torchao 0.18, Int4Tensor",
        packing="tile_packed_to_4d",  # whose kernel is torch's own; the default's is mslk's
        least_capability=(8, 0),
    ),
    "int8": Scheme(
        "torchao",
        "torchao, Int8WeightOnlyConfig()",
        "8 bits a value, a scale in float32 and a zero point in 8 bits for each row",
        lambda rows, columns, itemsize: rows * columns + 5 * rows,
        "torchao 0.18, Int8Tensor",
    ),
    "fp8": Scheme(
        "torchao",
        "torchao, Float8WeightOnlyConfig()",
        "8 bits a value (e4m3), a scale in float32 for each row",
        _int8_rows,
        "torchao 0.18, Float8Tensor",
    ),
    "gptq": _of_gptqmodel("gptq", 4, 128),
    "awq": _of_gptqmodel("awq", 4, 128),
}  # fmt: skip


def scheme_of_config(config: Mapping[str, Any]) -> tuple[str, Scheme] | None:
    """The name and the scheme of a ``quantization_config``; None if its bytes are not known.

    Args:
        config: of bitsandbytes, GPTQ or AWQ, or ``"fp8"`` (blocks with a float32 scale, as in
            DeepSeek-V3).
    """
    method = method_of(config)
    if method == "bitsandbytes" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        name, scheme = _of_bitsandbytes(config)
        return name, _keeping(scheme, config.get("llm_int8_skip_modules"))
    kept = config.get("modules_to_not_convert", config.get("ignored_layers"))
    block, bits = config.get("weight_block_size"), config.get("bits", config.get("w_bit"))
    if method == "fp8" and block:
        return "fp8", _keeping(_of_blocks(config, *block), kept)
    if method in ("gptq", "awq") and bits in (2, 4, 8):
        group = config.get("group_size", config.get("q_group_size", 128))
        return method, _of_gptqmodel(method, bits, group)._replace(kept=tuple(kept or ()))
    return None


def _keeping(scheme: Scheme, names: Sequence[str] | None) -> Scheme:
    """The scheme with the layers that a config of transformers keeps, which replace the usual ones
    (``HfQuantizer.get_modules_to_not_convert``).
    """
    return scheme if names is None else scheme._replace(kept=tuple(names), keeps_usual=False)


def method_of(config: Mapping[str, Any]) -> str:
    """The ``quant_method`` of a ``quantization_config``."""
    named = config.get("quant_method", "")
    return str(getattr(named, "value", named)).lower()  # may be an enum of transformers


def _of_blocks(config: Mapping[str, Any], rows_of_block: int, columns_of_block: int) -> Scheme:
    scale_bytes = 1 if config.get("scale_fmt") == "ue8m0" else 4

    def num_bytes(rows: int, columns: int, itemsize: int) -> int:
        scales = -(-rows // rows_of_block) * -(-columns // columns_of_block)
        return rows * columns + scale_bytes * scales

    def in_4_bits(rows: int, columns: int, itemsize: int) -> int:
        return rows * (columns // 2 + scale_bytes * -(-columns // _FP4_GROUP))

    return Scheme(
        "transformers",
        "transformers, FineGrainedFP8Config()",
        f"8 bits a value (e4m3), a scale in {'8 bits' if scale_bytes == 1 else 'float32'} for each "
        f"block of {rows_of_block} x {columns_of_block}",
        num_bytes,
        "transformers 5.24, integrations/finegrained_fp8.py",
        of_expert=in_4_bits if config.get("expert_dtype") == "fp4" else num_bytes,
    )


_FP4_GROUP = 32


def _of_bitsandbytes(config: Mapping[str, Any]) -> tuple[str, Scheme]:
    if config.get("load_in_8bit"):
        return "int8", SCHEMES["bnb-int8"]
    name = str(config.get("bnb_4bit_quant_type", "fp4"))
    if config.get("bnb_4bit_use_double_quant"):
        return name, SCHEMES["nf4"]
    return name, SCHEMES["nf4"]._replace(
        library=f"bitsandbytes, BitsAndBytesConfig(load_in_4bit, {name})",
        held="4 bits per value, a float32 scale per block of 64 values",
        num_bytes=_nf4_single,
    )


def scheme_named(name: str) -> Scheme:
    """The scheme with a name, as given to ``--weights``.

    Raises:
        InputsError: if there is no such scheme.
    """
    if not isinstance(name, str) or name not in SCHEMES:
        raise InputsError(f"weights={name!r} is not {', '.join(SCHEMES)}")
    return SCHEMES[name]

"""Quantizes the weights of a module by the layers of the scheme's library.

Input: a module of fakes, in a mode, and the name of a scheme. Output: the module, its linear layers
replaced by those of the library, which hold codes and scales. Invariant: the layers are those that
:func:`torchfake.inspect.weights` counts; the others are not changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from torchfake.errors import InputsError, MissingExtraError
from torchfake.inspect.contents.described import described_weights
from torchfake.inspect.contents.schemes import SCHEMES, Scheme, scheme_named
from torchfake.inspect.contents.weights import quantized_layers, weights_by
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.messages import one_line
from torchfake.observe import AnswerFunction, Question

Quantizer = Callable[[Any, nn.Module, Mapping[str, Any], bool], nn.Module]
"""Quantizes layers of a module: of the library, the module, the layers by name, whether FSDP is to
shard them."""


def with_weights(fake_copy: FakeCopy, name: str) -> FakeCopy:
    """The fake copy with weights quantized by a scheme.

    Raises:
        InputsError: if the scheme has no layers that run, or does not fit the module.
        MissingExtraError: if the scheme's library is not installed.
    """
    with fake_copy.mode():
        module = quantize(fake_copy.module, name)
    left = {id(parameter) for parameter in module.parameters()}
    kept = {key: p for key, p in fake_copy.by_tensor.items() if id(p) in left}
    return replace(fake_copy, module=module, by_tensor=kept)


def check_runs(name: str) -> None:
    """Refuse a scheme whose layers cannot be run.

    Raises:
        InputsError: if there is no such scheme, or only its sizes are known.
        MissingExtraError: if the scheme's library is not installed.
    """
    _library(name, scheme_named(name))


def library_is_missing(name: str) -> bool:
    """Whether only the sizes of a scheme can be given: for want of its library, or of fakes of it.

    Raises:
        InputsError: if there is no such scheme.
    """
    scheme = scheme_named(name)
    try:
        _library(name, scheme)
    except (InputsError, MissingExtraError):
        return True
    return False


_AS_DESCRIBED = {"fp8": "fp8", "nf4": "nf4", "int8": "bnb-int8"}
"""Schemes that run, by the format in a config whose bits they have."""


def scheme_as_described(module: nn.Module) -> str | None:
    """The scheme that runs with the bits of the format in a module's config, for as many of the
    parameters; None if there is none.
    """
    described = described_weights(module)
    name = None if described is None else _AS_DESCRIBED.get(described.scheme)
    if described is None or name is None:
        return None
    found = weights_by(module, name, SCHEMES[name], {})
    return name if found.num_quantized == described.num_quantized else None


def outliers_of(name: str | None) -> AnswerFunction | None:
    """The function that supplies unknown values by default: LLM.int8() multiplies columns with
    outliers apart, which are about one in a thousand; none is assumed.
    """
    return no_outliers if name == "bnb-int8" else None


def no_outliers(question: Question) -> int | None:
    """The answer to how many columns of a matrix have outliers: none."""
    counts = question.kind == "count" and question.asked_by.startswith("bitsandbytes.int8")
    return question.lowest if counts else None


def quantize(module: nn.Module, name: str, *, shards: bool = False) -> nn.Module:
    """Quantize the weights of `module` in place, in the active mode, and return it.

    Args:
        module: a module of fakes.
        name: the name of the scheme.
        shards: whether FSDP is to shard the weights: bitsandbytes then stores its codes in the
            dtype of the model (``bnb_4bit_quant_storage``).
    """
    scheme = scheme_named(name)
    library = _library(name, scheme)
    layers = {
        path: layer
        for path, layer, shape in quantized_layers(module, scheme)
        if scheme.num_bytes(*shape, layer.weight.dtype.itemsize) is not None
    }
    if not layers:
        raise InputsError(f"{type(module).__name__} has no layers that weights={name!r} quantizes")
    try:
        return _QUANTIZERS[name](library, module, layers, shards)
    except (
        AssertionError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError
    ) as error:  # fmt: skip
        says = one_line(error)
        remedy = (
            "; build the model with dtype=bfloat16"
            if "bfloat16" in says and "float32" in says
            else ""
        )
        raise InputsError(f"weights={name!r}: {scheme.package} says: {says}{remedy}") from error


def _library(name: str, scheme: Scheme) -> Any:
    if name not in _QUANTIZERS:
        run = ", ".join(_QUANTIZERS)
        raise InputsError(
            f"weights={name!r} gives the size of the weights alone, because its kernels exist for "
            f"real GPUs only: leave out what is to be run, or give one of {run}; `torchfake serve` "
            "counts a server's weights as engines store them"
        )
    try:
        return importlib.import_module(scheme.package)
    except ImportError as error:
        raise MissingExtraError(
            f"a step with weights={name!r} runs the layers of {scheme.package}: pip install "
            f"{scheme.package}"
        ) from error


# bitsandbytes.


def _by_bitsandbytes(make: Callable[[Any, Any, bool], nn.Module], flag: str) -> Quantizer:
    def quantize(
        library: Any, module: nn.Module, layers: Mapping[str, Any], shards: bool
    ) -> nn.Module:
        for path, layer in layers.items():
            made: Any = make(library, layer, shards)
            if layer.bias is not None:
                made.bias = layer.bias
            made.train(layer.training)
            if not path:
                module = made
                continue
            owner, _, attribute = path.rpartition(".")
            setattr(module.get_submodule(owner), attribute, made)
        setattr(module, flag, True)  # which PEFT asks transformers' models for
        return module

    return quantize


def _weight_of(layer: Any) -> Any:
    """The weight as ``nn.Linear`` holds it; ``Conv1D`` of transformers has it transposed."""
    weight = layer.weight.detach()
    return weight if isinstance(layer, nn.Linear) else weight.T.contiguous()


def _in_4_bits(kind: str) -> Callable[[Any, Any, bool], nn.Module]:
    def make(library: Any, layer: Any, shards: bool) -> nn.Module:
        weight = _weight_of(layer)
        rows, columns = weight.shape
        options = {"compress_statistics": True, "quant_type": kind}
        options |= {"quant_storage": weight.dtype} if shards else {}
        has_bias = layer.bias is not None
        made: nn.Module = library.nn.Linear4bit(
            columns, rows, has_bias, weight.dtype, **options, device="meta"
        )
        made.weight = library.nn.Params4bit(weight, requires_grad=False, **options, module=made).to(
            weight.device
        )  # which quantizes
        return made

    return make


def _in_8_bits(library: Any, layer: Any, shards: bool) -> nn.Module:
    weight = _weight_of(layer)
    rows, columns = weight.shape
    options = {"has_fp16_weights": False, "threshold": 6.0}
    made: nn.Module = library.nn.Linear8bitLt(
        columns, rows, layer.bias is not None, **options, device="meta"
    )
    made.weight = library.nn.Int8Params(
        weight.to("cpu"), requires_grad=False, has_fp16_weights=False
    ).to(weight.device)  # which quantizes what comes from the CPU
    return made


# torchao.


def _by_torchao(config: str, **options: Any) -> Quantizer:
    def quantize(
        library: Any, module: nn.Module, layers: Mapping[str, Any], shards: bool
    ) -> nn.Module:
        chosen = set(layers.values())
        made = getattr(library.quantization, config)(**options)
        library.quantization.quantize_(module, made, lambda layer, path: layer in chosen)
        return module

    return quantize


_QUANTIZERS: dict[str, Quantizer] = {
    "nf4": _by_bitsandbytes(_in_4_bits("nf4"), "is_loaded_in_4bit"),
    "bnb-int8": _by_bitsandbytes(_in_8_bits, "is_loaded_in_8bit"),
    "int8": _by_torchao("Int8WeightOnlyConfig"),
    "fp8": _by_torchao("Float8WeightOnlyConfig"),
    "int4": _by_torchao("Int4WeightOnlyConfig", int4_packing_format=SCHEMES["int4"].packing),
}

assert {*_QUANTIZERS} <= {*SCHEMES}

"""Creates the caches of transformers, by the names that ``generate`` uses for them.

Input: a model of transformers and a :class:`Serve`. Output: an empty cache object. Invariant: its
class and arguments are those that ``generate`` would use, so that the same code runs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from torchfake._files.transformers_checkpoints import is_transformers_model
from torchfake.errors import InputsError, MissingExtraError
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.serve import FP8, INTEGERS, QUANTIZED, Serve

_ITS_OWN = "has a cache of its own: give serve= cache='dynamic'"
_QUANTO_BITS, _HQQ_BITS = (2, 4), (1, 2, 3, 4, 8)


def config_of(module: nn.Module) -> Any:
    """The config of the text decoder of a model.

    Raises:
        InputsError: if `module` is not a model of transformers.
    """
    if not is_transformers_model(module):
        raise InputsError(
            f"serve= supports transformers models, and this is a {type(module).__name__}: "
            "estimate a function that fills your cache instead"
        )
    config: Any = module.config
    return config.get_text_config(decoder=True)


def cache_for(module: nn.Module, serve: Serve) -> Any:
    """An empty cache for a model; None if the model creates a dynamic cache of its own class.

    Raises:
        InputsError: if the model does not support the cache.
        MissingExtraError: if quantizing the cache needs a library that is not installed.
    """
    config = config_of(module)
    if isinstance(serve.cache, str) and _has_its_own(module):
        if serve.cache == "dynamic":
            return None
        raise InputsError(f"{type(module).__name__} {_ITS_OWN}")
    try:
        cache = _cache(config, serve)
    except ImportError as error:
        raise MissingExtraError(f"this cache needs a library: {one_line(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        name = type(module).__name__
        raise InputsError(f"{name} has no {serve.cache_name} cache: {one_line(error)}") from error
    if not getattr(module.config, "is_encoder_decoder", False):
        return cache
    from transformers import DynamicCache, EncoderDecoderCache

    is_both = isinstance(cache, EncoderDecoderCache)
    return cache if is_both else EncoderDecoderCache(cache, DynamicCache(config=config))


def _has_its_own(module: nn.Module) -> bool:
    supports = getattr(module, "_supports_default_dynamic_cache", None)
    return callable(supports) and not supports()


def dynamic_cache(module: nn.Module) -> Any:
    """A ``DynamicCache``, whose layers follow the windows and states in the config.

    Raises:
        InputsError: if the model creates a cache of its own class.
    """
    if _has_its_own(module):
        raise InputsError(f"{type(module).__name__} {_ITS_OWN}")
    return cache_for(module, Serve(2, cache="dynamic"))


def _cache(config: Any, serve: Serve) -> Any:
    from transformers import DynamicCache, QuantizedCache, StaticCache

    if not isinstance(serve.cache, str):
        return serve.cache(config)
    if serve.cache == QUANTIZED:
        backend, bits = _backend(serve)
        options = {} if backend == "fp8" else {"nbits": bits}
        return QuantizedCache(backend, config, **options)
    if serve.cache in ("static", "offloaded_static"):
        offloading = serve.cache != "static"
        return StaticCache(config=config, max_cache_len=serve.context, offloading=offloading)
    return DynamicCache(config=config, offloading=serve.cache == "offloaded")


def _backend(serve: Serve) -> tuple[str, int]:
    """The backend that quantizes a cache, and its number of bits.

    Raises:
        InputsError: if the backend does not support the dtype.
    """
    name = serve.dtype_name or ("fp8" if serve.backend == "fp8" else "int4")
    if name in FP8:
        found, bits = "fp8", 8
    else:
        bits = INTEGERS[name]
        found = serve.backend or ("quanto" if bits in _QUANTO_BITS else "hqq")
    known = {"quanto": _QUANTO_BITS, "hqq": _HQQ_BITS, "fp8": (8,)}[found]
    if serve.backend not in (None, found) or bits not in known or (found == "fp8") != (name in FP8):
        raise InputsError(f"backend={serve.backend!r} has no cache of {name}")
    return found, bits

"""Creates configs of transformers from a dict, with some keys overridden.

Input: a config class, the dict of a config file, and ``key=value`` overrides whose keys may have
dots. Output: a config. Invariant: attributes that a config computes from others follow the
overrides.
"""

from __future__ import annotations

from typing import Any

from torchfake.errors import TargetError, did_you_mean
from torchfake.inspect.records.messages import one_line


def config_from(
    name: str, config_class: Any, raw: dict[str, Any], overrides: dict[str, Any]
) -> Any:
    """A config created from `raw` with `overrides`; `name` is used in error messages."""
    try:
        config = config_class.from_dict(dict(raw))
        return _overridden(config, raw, overrides, "") if overrides else config
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"the config of {name} could not be made: {one_line(error)}") from error


def _overridden(config: Any, raw: dict[str, Any], values: dict[str, Any], prefix: str) -> Any:
    """A config like `config`, which was created from `raw`, with `values` overridden.

    The config is created again, because configs compute attributes from others, such as a list of
    layer types from the number of layers, which setting an attribute would not update.
    """
    direct: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        head, dot, rest = key.partition(".")
        _check_known(config, head, prefix)
        head = config.attribute_map.get(head, head)
        if dot:
            nested.setdefault(head, {})[rest] = value
        else:
            direct[head] = value
    for head, inner in nested.items():
        part = getattr(config, head)
        part_raw = _raw_part(config, raw, head, part)
        direct[head] = _overridden_part(part, part_raw, inner, f"{prefix}{head}.")
    made = type(config).from_dict({**raw, **direct})
    _set_ignored(made, direct)
    return made


def _raw_part(config: Any, raw: dict[str, Any], key: str, part: Any) -> dict[str, Any]:
    """The dict that a nested config was created from: in the file, else its parent's defaults, else
    the attributes of the nested config itself. These are the last choice because they include
    computed attributes, such as head_dim.
    """
    if isinstance(raw.get(key), dict):
        return dict(raw[key])
    defaults = (getattr(type(config), "sub_configs_defaults", None) or {}).get(key)
    if defaults is not None:
        return dict(defaults.init_kwargs or {})
    return dict(part.to_diff_dict()) if hasattr(part, "to_diff_dict") else {}


def _overridden_part(part: Any, raw: dict[str, Any], values: dict[str, Any], prefix: str) -> Any:
    if hasattr(part, "to_diff_dict"):
        return _overridden(part, raw, values, prefix)
    if not isinstance(part, dict):
        raise TargetError(
            f"config key {prefix.rstrip('.')!r} is {part!r}: it has no {next(iter(values))!r}"
        )
    return {**part, **values}


def _set_ignored(config: Any, values: dict[str, Any]) -> None:
    """Set values that the constructor ignored, such as num_labels if labels have names."""
    for key, value in values.items():
        if isinstance(value, int) and getattr(config, key) != value:
            setattr(config, key, value)


def _check_known(config: Any, key: str, prefix: str) -> None:
    known = {*config.to_dict(), *config.attribute_map}
    if key not in known and not (hasattr(config, key) and not callable(getattr(config, key))):
        hint = did_you_mean(prefix + key, (prefix + name for name in known))
        raise TargetError(f"{type(config).__name__} has no key {key!r}{hint}")

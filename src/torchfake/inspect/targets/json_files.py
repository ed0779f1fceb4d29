"""Reads JSON files of configs, with a limit on their size.

Input: a path. Output: the object in the file. Invariant: nothing larger than a config is read;
errors are TargetErrors of one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchfake.errors import TargetError
from torchfake.inspect.records.messages import one_line


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or in the ``config.json`` of a folder."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(_text_of(file))
    except FileNotFoundError as error:
        raise TargetError(
            f"there is no file {str(file)!r}; nothing is downloaded for a path"
        ) from error
    except OSError as error:
        raise TargetError(f"{file} could not be read: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{file} is not JSON: {one_line(error)}") from error
    if not isinstance(raw, dict):
        raise TargetError(f"{file} holds a JSON {type(raw).__name__}, not the object of a config")
    return raw


def _text_of(file: Path) -> str:
    """The text of a file, unless it is larger than any config; a device file may be endless."""
    with file.open("rb") as opened:
        content = opened.read(_MAX_CONFIG_BYTES + 1)
    if len(content) > _MAX_CONFIG_BYTES:
        raise ValueError(f"it has more than {_MAX_CONFIG_BYTES:,} bytes")
    return content.decode("utf-8")


_MAX_CONFIG_BYTES = 50_000_000

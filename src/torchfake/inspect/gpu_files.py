"""Profiles of GPUs that a user describes in a TOML file.

Input: a path. Output: profiles by name. Invariant: torchfake's own table of profiles is not
changed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torchfake._core.gpu_profiles import CUDA, ROCM, CudaProfile
from torchfake.errors import DeviceError, MissingExtraError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_profiles(path: str | Path) -> dict[str, CudaProfile]:
    """Read GPU profiles from a TOML file, with one table per profile, named by its key.

    ::

        [my-card]
        total_memory = "24 GiB"       # or a number of bytes; everything else is optional
        name = "My Card"
        major = 8                     # compute capability, 8.0 if not given
        minor = 9
        multi_processor_count = 128
        source = "https://..."
        backend = "cuda"              # or "rocm"

    Args:
        path: the path of the file.

    Raises:
        DeviceError: if the file does not have this format.
        MissingExtraError: on Python 3.10, if tomli is not installed.
    """
    raw = _read(Path(path))
    if not raw:
        raise DeviceError(f"{path} has no profiles: give a table for each, such as [my-card]")
    return {key: _profile(f"{path}: [{key}]", key, table) for key, table in raw.items()}


def _read(path: Path) -> dict[str, Any]:
    tomllib = _tomllib()
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DeviceError(f"{path} could not be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # such as TOMLDecodeError, UnicodeDecodeError
        raise DeviceError(f"{path} is not TOML: {error}") from error


def _tomllib() -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            'a file of profiles needs tomli on Python 3.10: pip install "torchfake[cli]"'
        ) from error


def _profile(where: str, key: str, table: Any) -> CudaProfile:
    if not isinstance(table, dict):
        raise DeviceError(f"{where} is {table!r}, not a table")
    unknown = set(table) - set(CudaProfile._fields)
    if unknown:
        known = ", ".join(CudaProfile._fields)
        raise DeviceError(
            f"{where} has unknown keys: {', '.join(sorted(unknown))}; known keys: {known}"
        )
    if "total_memory" not in table:
        raise DeviceError(f'{where} lacks total_memory, such as "24 GiB"')
    return CudaProfile(
        name=str(table.get("name", key)),
        total_memory=_num_bytes(where, table["total_memory"]),
        major=_whole_number(where, table, "major", 8),
        minor=_whole_number(where, table, "minor", 0),
        multi_processor_count=_whole_number(where, table, "multi_processor_count", 100),
        source=str(table.get("source", where.partition(":")[0])),
        backend=_backend(where, table),
    )


def _backend(where: str, table: dict[str, Any]) -> str:
    value = table.get("backend", CUDA)
    if value not in (CUDA, ROCM):
        raise DeviceError(f"{where} backend = {value!r} is not {CUDA!r} or {ROCM!r}")
    return str(value)


def _whole_number(where: str, table: dict[str, Any], key: str, default: int) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DeviceError(f"{where} {key} = {value!r} is not a whole number of 0 or more")
    return value


def _num_bytes(where: str, value: Any) -> int:
    text = str(value).replace("_", "").strip()
    number = text.rstrip("".join(set("".join(_UNITS)) | {"i", "k"}))
    unit = text[len(number) :].strip().upper() or "B"
    try:
        found = float(number) * _UNITS[unit]
    except (ValueError, KeyError) as error:
        raise DeviceError(
            f'{where} total_memory = {value!r} is not a number of bytes, or a text such as "24 GiB"'
        ) from error
    if isinstance(value, bool) or not 0 < found < 1 << 60:
        raise DeviceError(f"{where} total_memory = {value!r} is not a possible number of bytes")
    return int(found)

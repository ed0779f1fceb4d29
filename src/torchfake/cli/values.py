"""Parsers of the text of options: GPUs, prompts.

Input: the text of an option. Output: values that the Python functions take. Invariant: invalid text
is an error that says what the option takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchfake._core.gpu_profiles import CudaProfile, named_profiles
from torchfake.errors import InputsError


def parse_gpus(
    names: Sequence[str] | None, file: Path | None
) -> tuple[str | CudaProfile, ...] | None:
    """The named GPUs, which may be defined in `file`; all GPUs of the file if none is named.

    Raises:
        DeviceError: if a name matches no GPU, or several.
    """
    own = {} if file is None else _profiles_in(file)
    if names is None:
        return tuple(own.values()) or None
    single = [name.strip() for text in names for name in text.split(",")]
    given = [own.get(n, n) for n in single]
    found = named_profiles(given, "--gpu")
    return tuple(gpu if gpu in given else key for key, gpu in found.items())


def _profiles_in(file: Path) -> dict[str, CudaProfile]:
    from torchfake.inspect.gpu_files import read_profiles

    return read_profiles(file)


def parse_names(option: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    """The names in texts of the form ``NAME,NAME``.

    Raises:
        InputsError: if a text has an empty name.
    """
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if not all(names):
        raise InputsError(f"{option} {','.join(texts or ())!r} has an empty name")
    return tuple(names)


def parse_decode(text: str | None) -> tuple[int, int] | None:
    """The two numbers of ``PROMPT,NEW``."""
    if text is None:
        return None
    prompt, _, new = text.partition(",")
    try:
        return int(prompt), int(new)
    except ValueError as error:
        raise InputsError(f"--decode {text!r} is not PROMPT,NEW, such as 1024,256") from error

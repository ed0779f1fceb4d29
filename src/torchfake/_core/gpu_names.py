"""Finds the GPU that a name means, by its model or a prefix, without regard to case or punctuation.

Input: a name that a user wrote, and the known names: keys of profiles, and drivers' names. Output:
the keys that may be meant, or text for an error. Invariant: a key is never chosen among several
that fit equally well; torch is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from torchfake.errors import did_you_mean

_SAME = {"h100sxm": "h100", "h100sxm5": "h100", "b300270gb": "b300288gb"}
"""Other names in use for profiles, and the names that they have here, plain."""

_COUNTED = re.compile(r"(\d+)\s*[x*:]\s*(\D.*)|(.+?)\s*[x*:]\s*(\d+)", re.IGNORECASE)
"""A number of GPUs, as in ``8xh100``, ``h100 x 8`` or ``h100:8``."""

_VENDORS = r"^(nvidia|amd|geforce|instinct|tesla|radeon)+"


def _plain(name: str) -> str:
    """The letters and digits of a name, without the vendor: ``"NVIDIA L40S"`` gives ``"l40s"``."""
    return re.sub(_VENDORS, "", re.sub(r"[^a-z0-9]", "", name.lower()))


@cache
def _spellings(key: str, drivers_name: str) -> tuple[str, ...]:
    """The plain key, model and driver's name of a profile; "rtx4090" can be spelt "4090" too."""
    found = _plain(key), _plain(key.partition("-")[0]), _plain(drivers_name)
    return (*found, *(name.removeprefix("rtx") for name in found))


def keys_named(name: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that a name may mean: exactly one if the name is unambiguous.

    A model's name means that model: ``"h100"`` is ``"h100-80gb"``, not ``"h100pcie-80gb"``. Other
    names are prefixes, but not of other models: ``"4070"`` does not mean a 4070 Ti.

    Args:
        name: The name, as a user wrote it.
        names: The drivers' names of all profiles, by key.
    """
    plain = _SAME.get(_plain(name), _plain(name))
    if not plain or ":" in name:  # "h100:8" is no prefix of h100-80gb
        return ()
    spellings = {key: _spellings(key, names[key]) for key in names}
    exact = tuple(key for key in names if plain in spellings[key])
    return exact or tuple(key for key in names if any(map(_begins(plain), spellings[key])))


def _begins(plain: str) -> Callable[[str], bool]:
    def test(spelling: str) -> bool:
        rest = spelling[len(plain) :]
        is_other_model = plain[-1].isdigit() and rest[:1].isalpha() and not rest.startswith("gb")
        return spelling.startswith(plain) and not is_other_model

    return test


def did_you_mean_gpu(name: str, names: Mapping[str, str]) -> str:
    """``; did you mean A or B?`` with the keys closest to an unknown name; "" if none is close. For
    a number of GPUs, such as ``"8xh100"``, how to name them; for the CPU, what tells its memory.
    """
    plain = _plain(name)
    if plain == "cpu":
        return "; torchfake inspect, or estimate without gpu=, tells the memory on the CPU."
    counted = _COUNTED.fullmatch(name.strip())
    if counted is not None:
        number, found = counted[1] or counted[4], keys_named(counted[2] or counted[3], names)
        if len(found) == 1:
            return (
                f", a name is that of one GPU: {found[0]}. torchfake plan and torchfake serve "
                f"take {number} of them: --gpus {number} --gpu {found[0]}."
            )
    by_spelling = {spelling: key for key in names for spelling in _spellings(key, names[key])}
    if plain.isdigit():  # "3060" is no "b300"
        by_spelling = {text: key for text, key in by_spelling.items() if text[:1].isdigit()}
    return did_you_mean(plain, by_spelling, by_spelling.__getitem__)

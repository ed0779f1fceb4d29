"""Which GPU a name means: case and punctuation aside, by its model, or by how it begins.

Input: a name that a user wrote, and the known names: keys of profiles, and drivers' names. Output:
the keys that may be meant, or text for an error. Invariant: a name means one GPU or an error says
which; torch is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from torchfake.errors import did_you_mean

_SAME = {"h100sxm": "h100", "h100sxm5": "h100", "b300270gb": "b300288gb"}
"""Names that people write for what has another name here."""

_VENDORS = r"^(nvidia|amd|geforce|instinct|tesla|radeon)+"


def _plain(name: str) -> str:
    """Letters and digits of a name, without the vendor's: ``"NVIDIA L40S"`` is ``"l40s"``."""
    return re.sub(_VENDORS, "", re.sub(r"[^a-z0-9]", "", name.lower()))


@cache
def _spellings(key: str, drivers_name: str) -> tuple[str, ...]:
    """The key, the model alone and the driver's name, plain; of "rtx4090" also "4090"."""
    found = _plain(key), _plain(key.partition("-")[0]), _plain(drivers_name)
    return (*found, *(name.removeprefix("rtx") for name in found))


def keys_named(name: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that a name may mean: one if it is clear.

    A name of a model means that model: ``"h100"`` is ``"h100-80gb"``, not ``"h100pcie-80gb"``. Else
    what begins so is meant, but no other model: ``"4070"`` is no 4070 Ti.

    Args:
        name: as a user wrote it.
        names: drivers' names by key.
    """
    plain = _SAME.get(_plain(name), _plain(name))
    if not plain:
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
    """``; did you mean A or B?`` or "": the keys closest to a name that means none."""
    by_spelling = {spelling: key for key in names for spelling in _spellings(key, names[key])}
    return did_you_mean(_plain(name), by_spelling, by_spelling.__getitem__)

"""Which GPU a name means: case and punctuation aside, by its model, or by how it begins.

Input: what a user wrote, and the names there are: keys of profiles, and drivers' names. Output:
the keys that may be meant, or text for an error. Invariant: a name means one GPU or an error says
which; nothing is imported but the standard library.
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
    return did_you_mean(_plain(name), by_spelling)


_OTHERS = {
    r"apple.*|m[1-5](pro|max|ultra)?(\d+gb)?": (
        "Apple GPUs have no profile: their allocator and kernels are not modelled. Metal advises "
        "to use at most 2/3 of a machine's memory up to 36 GB, and 3/4 above: 21.3 of 32 GiB "
        "(https://github.com/ollama/ollama/issues/434), 72 of 96 GiB "
        "(https://github.com/ggml-org/llama.cpp/issues/3213). "
        "Compare an estimate for the CPU with these figures"
    ),
    r"intel.*|arc.*|xpu|(datacenter)?(gpu)?max1[15]50|a770.*|b5[78]0.*|gaudi.*": (
        "Intel GPUs have no profile: their allocator and kernels are not modelled. torch.xpu "
        "reports 15473 MiB for an Arc A770, 11605 MiB for an Arc B580, 65536 MiB for one tile of a "
        "Max 1550. "
        "Compare an estimate for the CPU with these figures"
    ),
}
"""What is said of GPUs that torch does not call cuda."""


_SEVERAL = r"(?P<n>\d+)\s*[x*]\s*(?P<a>[a-z]\w[\w -]*)|(?P<b>[a-z]\w[\w-]*?)\s*[x*:]\s*(?P<m>\d+)"


def other_device(name: str) -> str:
    """What to do instead, if a name is that of several GPUs, or of one of Apple or Intel."""
    if re.fullmatch(r"(cuda|gpu|cpu|mps|xpu)(:\d+)?", name.strip().lower()):
        return f"{name} is a device, not a GPU: give the name of one, such as h100-80gb"
    if re.fullmatch(r"\d{1,3}|[\d.e+]+\s*[gm]i?b?|[\d.]+e\+?\d+", name.strip().lower()):
        return f"{name} is a size: name a GPU, or describe one of that size in a file of profiles"
    if several := re.fullmatch(_SEVERAL, name.strip(), re.I):
        number, gpu = several["n"] or several["m"], several["a"] or several["b"]
        return f"give one GPU here; for several: torchfake plan TARGET --gpus {number} --gpu {gpu}"
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((text for form, text in _OTHERS.items() if re.fullmatch(form, plain)), "")

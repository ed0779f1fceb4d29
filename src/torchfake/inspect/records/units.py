"""Counts, bytes, floating point operations and durations as text.

Input: a number. Output: text of three digits and a unit. Invariant: 1 GB is 10^9 bytes, 1 GiB is
2^30.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchfake._torch.contexts import Setting
from torchfake.errors import InputsError


class Display:
    """How results are shown; one setting for all threads."""

    units: str | None = None  # "GB", "GiB" or "both"; None: GB, and both for GPU memory
    macs = False  # whether operations are shown as multiply-accumulates, not as FLOPs


display = Display()

UNITS = ("GB", "GiB", "both")
"""The units in which bytes can be shown."""


def set_units(units: str | None) -> None:
    """Set the units in which bytes are shown.

    Args:
        units: ``"GB"`` (powers of 1000), ``"GiB"`` (powers of 1024) or ``"both"``. None restores
            the default: GB, and both for sizes that are compared with GPU memory.

    Raises:
        InputsError: if the units do not exist.

    >>> set_units("GiB"); bytes_text(10_785_075_200); set_units(None)
    '10.0 GiB'
    """
    _check(units)
    display.units = units


def shown_in(units: str | None) -> Setting:
    """Context in which bytes are shown in `units`; None changes nothing.

    Raises:
        InputsError: if the units do not exist.
    """
    _check(units)
    wanted = units or display.units
    return Setting(lambda: display.units, set_units, wanted)


def _check(units: str | None) -> None:
    if units is not None and units not in UNITS:
        raise InputsError(f"units={units!r} are not GB, GiB or both")


def count_text(count: int) -> str:
    """A count as text with three digits.

    >>> count_text(2_696_268_800), count_text(16)
    ('2.70B', '16')
    """
    names = ("", "K", "M", "B", "T", "Q")
    return _scaled(count, names)


def rounded_text(count: int) -> str:
    """A count to the digit, and if it is long, also rounded: ``2,048 (2.05K)``."""
    return f"{count:,} ({count_text(count)})" if count >= 1000 else str(count)


def number_text(number: int, noun: str) -> str:
    """A number of things: ``1 user``, ``1,024 users``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def counts_text(counts: Iterable[tuple[int, str]], noun: str) -> str:
    """Numbers of things, each with what is said of them, but for those of which there are none.

    >>> counts_text([(3, "missing"), (0, "unknown"), (2, "of another shape")], "tensor")
    '3 tensors missing, 2 of another shape'
    """
    found = [(number, what) for number, what in counts if number]
    texts = [f"{number_text(number, noun)} {what}" for number, what in found[:1]]
    return ", ".join([*texts, *(f"{number:,} {what}" for number, what in found[1:])])


def price_text(price: float) -> str:
    """A price with two digits behind the point, or where it is small two that say something.

    >>> price_text(2.5), price_text(0.0234)
    ('2.50', '0.023')
    """
    return f"{price:,.2f}" if price >= 0.1 else f"{price:.2g}"


def bytes_text(size_bytes: int) -> str:
    """Bytes as text, in GB unless :func:`set_units` has set other units.

    >>> bytes_text(10_785_075_200), bytes_text(-2048)
    ('10.8 GB', '-2.05 kB')
    """
    return _bytes_in(display.units or "GB", size_bytes)


def compared_bytes(size_bytes: int) -> str:
    """Bytes as text, for sizes that are compared with GPU memory: in GB and GiB unless set.

    >>> compared_bytes(85_899_345_920)
    '85.9 GB (80.0 GiB)'
    """
    return _bytes_in(display.units or "both", size_bytes)


def _bytes_in(units: str, size: int) -> str:
    if units == "GiB":
        return _scaled(size, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"), base=1024)
    decimal = _scaled(size, (" B", " kB", " MB", " GB", " TB", " PB"))
    if units == "GB" or abs(size) < 1000:
        return decimal
    return f"{decimal} ({_bytes_in('GiB', size)})"


def shown_as_macs(is_on: bool) -> Setting:
    """Context in which operations are shown as multiply-accumulates, each of which is two FLOPs."""
    return Setting(lambda: display.macs, _set_macs, is_on or display.macs)


def _set_macs(is_on: bool) -> None:
    display.macs = is_on


def operations_unit() -> str:
    """The unit in which operations are shown: ``FLOPs`` or ``MACs``."""
    return "MACs" if display.macs else "FLOPs"


def flops_text(count: int) -> str:
    """Floating point operations as text, in units of powers of 1000.

    >>> flops_text(1_234_000_000_000)
    '1.23 TFLOPs'
    """
    unit = operations_unit()
    count = count // 2 if display.macs else count
    return _scaled(count, tuple(f" {prefix}{unit}" for prefix in ("", "k", *"MGTPE")))


def _scaled(number: int, units: tuple[str, ...], base: int = 1000) -> str:
    scaled, power = float(abs(number)), 0
    while scaled >= 999.5 and power + 1 < len(units):  # 999.5 would be shown as 1000
        scaled, power = scaled / base, power + 1
    sign = "-" if number < 0 else ""
    digits = 0 if power == 0 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{sign}{scaled:.{digits}f}{units[power]}"


def short_name(dtype: Any) -> str:
    """A dtype as in the options of the command line.

    >>> short_name("torch.bfloat16"), short_name("int8")
    ('bf16', 'int8')
    """
    name = str(dtype).removeprefix("torch.")
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(
        name, name
    )


def main_dtype(num_bytes: Mapping[Any, int]) -> str:
    """The short name of the dtype of nearly all bytes, or "mixed dtypes"."""
    dtype, most = max(num_bytes.items(), key=lambda item: item[1])
    return short_name(dtype) if most >= 0.99 * sum(num_bytes.values()) else "mixed dtypes"


def duration_text(seconds: float) -> str:
    """A duration that may be long, as text with three digits and a unit.

    >>> duration_text(4526), duration_text(150), duration_text(0.5), duration_text(3e6)
    ('75.4 minutes', '2.5 minutes', '500 ms', '34.7 days')
    """
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return seconds_text(seconds)


def seconds_text(seconds: float) -> str:
    """A duration as text with three digits and a unit.

    >>> seconds_text(1.2345), seconds_text(0.0123), seconds_text(4e-6)
    ('1.23 s', '12.3 ms', '4 us')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"

"""Counts, bytes and floating point operations as text, in the units that people use.

Input: a number. Output: text of three digits and a unit. Invariant: 1 GB is 10^9 bytes, 1 GiB is
2^30.
"""

from __future__ import annotations

from torchfake._core import modes
from torchfake._torch.contexts import Setting
from torchfake.errors import InputsError

UNITS = ("GB", "GiB", "both")
"""What bytes may be shown in."""


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
    modes.display.units = units


def shown_in(units: str | None) -> Setting:
    """Context: bytes are shown in these units; None changes nothing.

    Raises:
        InputsError: if there are no such units.
    """
    _check(units)
    wanted = units or modes.display.units
    return Setting(lambda: modes.display.units, set_units, wanted)


def _check(units: str | None) -> None:
    if units is not None and units not in UNITS:
        raise InputsError(f"units={units!r} are not GB, GiB or both")


def count_text(count: int) -> str:
    """A count with three digits.

    >>> count_text(2_696_268_800), count_text(16)
    ('2.70B', '16')
    """
    names = ("", "K", "M", "B", "T", "Q")
    return _scaled(count, names)


def bytes_text(size_bytes: int) -> str:
    """Bytes, in GB if :func:`set_units` has not said otherwise.

    >>> bytes_text(10_785_075_200), bytes_text(-2048)
    ('10.8 GB', '-2.05 kB')
    """
    return _bytes_in(modes.display.units or "GB", size_bytes)


def compared_bytes(size_bytes: int) -> str:
    """The same for a size that people compare: in both units.

    >>> compared_bytes(85_899_345_920)
    '85.9 GB (80.0 GiB)'
    """
    return _bytes_in(modes.display.units or "both", size_bytes)


def _bytes_in(units: str, size: int) -> str:
    if units == "GiB":
        return _scaled(size, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"), base=1024)
    decimal = _scaled(size, (" B", " kB", " MB", " GB", " TB", " PB"))
    if units == "GB" or abs(size) < 1000:
        return decimal
    return f"{decimal} ({_bytes_in('GiB', size)})"


def shown_as_macs(is_on: bool) -> Setting:
    """Context: operations are shown as multiply-accumulates, each of which is two FLOPs."""
    return Setting(lambda: modes.display.macs, _set_macs, is_on or modes.display.macs)


def _set_macs(is_on: bool) -> None:
    modes.display.macs = is_on


def operations_unit() -> str:
    """``FLOPs``, or ``MACs`` where these are shown."""
    return "MACs" if modes.display.macs else "FLOPs"


def flops_text(count: int) -> str:
    """Floating point operations in units of powers of 1000.

    >>> flops_text(1_234_000_000_000)
    '1.23 TFLOPs'
    """
    unit = operations_unit()
    count = count // 2 if modes.display.macs else count
    return _scaled(count, tuple(f" {prefix}{unit}" for prefix in ("", "k", *"MGTPE")))


def _scaled(number: int, units: tuple[str, ...], base: int = 1000) -> str:
    scaled, power = float(abs(number)), 0
    while scaled >= 999.5 and power + 1 < len(units):  # 999.5 would be shown as 1000
        scaled, power = scaled / base, power + 1
    sign = "-" if number < 0 else ""
    digits = 0 if power == 0 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{sign}{scaled:.{digits}f}{units[power]}"


def seconds_text(seconds: float) -> str:
    """A duration with three digits and a unit.

    >>> seconds_text(1.2345), seconds_text(0.0123), seconds_text(4e-6)
    ('1.23 s', '12.3 ms', '4 us')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"

"""Counts, bytes and floating point operations as text, in the units that people use.

Input: a number. Output: text of three digits and a unit. Invariant: units are powers of 1000: 1 GB
is 10^9 bytes. Called by: ``show``, ``distributed/text`` and ``cli``.
"""

from __future__ import annotations


def count_text(count: int) -> str:
    """A count with its unit as a word.

    >>> count_text(2_696_268_800), count_text(16)
    ('2.70 billion', '16')
    """
    names = ("", " thousand", " million", " billion", " trillion", " quadrillion")
    return _scaled(count, names)


def bytes_text(size_bytes: int) -> str:
    """Bytes in units of powers of 1000.

    >>> bytes_text(10_785_075_200), bytes_text(-2048)
    ('10.8 GB', '-2.05 kB')
    """
    return _scaled(size_bytes, (" B", " kB", " MB", " GB", " TB", " PB"))


def flops_text(count: int) -> str:
    """Floating point operations in units of powers of 1000.

    >>> flops_text(1_234_000_000_000)
    '1.23 TFLOPs'
    """
    units = (" FLOPs", " kFLOPs", " MFLOPs", " GFLOPs", " TFLOPs", " PFLOPs", " EFLOPs")
    return _scaled(count, units)


def _scaled(number: int, units: tuple[str, ...]) -> str:
    scaled, power = float(abs(number)), 0
    while scaled >= 999.5 and power + 1 < len(units):  # 999.5 would be shown as 1000
        scaled, power = scaled / 1000, power + 1
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

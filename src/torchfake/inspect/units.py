"""Numbers as people say them.

Enters: counts. Leaves: text, in units of powers of 1000: 1 GB is 10^9 bytes.
"""

from __future__ import annotations


def count_text(count: int) -> str:
    """A count as people say it.

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
    """Floating point operations as people say them.

    >>> flops_text(1_234_000_000_000)
    '1.23 TFLOPs'
    """
    units = (" FLOPs", " kFLOPs", " MFLOPs", " GFLOPs", " TFLOPs", " PFLOPs", " EFLOPs")
    return _scaled(count, units)


def _scaled(number: int, units: tuple[str, ...]) -> str:
    size, power = float(abs(number)), 0
    while size >= 999.5 and power + 1 < len(units):  # 999.5 would be shown as 1000
        size, power = size / 1000, power + 1
    sign = "-" if number < 0 else ""
    digits = 0 if power == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{sign}{size:.{digits}f}{units[power]}"

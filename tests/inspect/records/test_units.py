"""Numbers with units, three digits each."""

from __future__ import annotations

from torchfake.inspect.records.units import bytes_text, count_text


def test_counts_and_bytes_with_units():
    assert [count_text(n) for n in (0, 999, 1000, 999_999, 2_696_268_800, 10**12)] == [
        "0",
        "999",
        "1.00K",
        "1.00M",
        "2.70B",
        "1.00T",
    ]
    assert [bytes_text(n) for n in (512, 12_345, 123_456, 9_999_999, 4 * 10**15)] == [
        "512 B",
        "12.3 kB",
        "123 kB",
        "10.0 MB",
        "4.00 PB",
    ]

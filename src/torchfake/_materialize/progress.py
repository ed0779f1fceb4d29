"""A progress bar while tensors are materialized or written.

Input: the number of bytes in all. Output: a function that is called with the bytes of each tensor.
Invariant: nothing is shown within the first two seconds unless it was asked for, and tqdm is
imported only if there is a bar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torchfake.errors import MissingExtraError

_SECONDS_OF_SILENCE = 2.0


@contextlib.contextmanager
def progress_bar(
    num_bytes: int, wanted: bool | None, what: str = "Materializing"
) -> Iterator[Callable[[int], Any] | None]:
    """A bar of `num_bytes`, shown at once, never, or after two seconds."""
    bar_class: Any = None
    if wanted is not False:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]

            bar_class = tqdm
        except ImportError:
            if wanted:
                raise MissingExtraError(
                    'progress=True needs tqdm: pip install "torchfake[progress]"'
                ) from None
    if bar_class is None:
        yield None
        return
    delay = 0.0 if wanted else _SECONDS_OF_SILENCE
    options = {"unit": "B", "unit_scale": True, "desc": what, "delay": delay}
    with bar_class(total=num_bytes, leave=bool(wanted), **options) as bar:
        yield bar.update

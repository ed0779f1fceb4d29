"""A progress bar while tensors are materialized or written.

Input: the total number of bytes. Output: a function to call with the bytes of each tensor.
Invariant: no bar is shown within the first two seconds unless the user asked for one, and tqdm is
imported only if there may be a bar.
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
    """A bar of `num_bytes`, shown at once (True), never (False), or after two seconds (None)."""
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

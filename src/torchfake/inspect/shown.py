"""How a record shows itself: as text, in a terminal, in a notebook, as a figure.

Enters: a record of what was found. Leaves: what Python, rich and Jupyter ask it for. Invariant: all
of them are made from the same rows; none is made before it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.errors import MissingExtraError


def data_frame(rows: Any) -> Any:
    """A pandas DataFrame of `rows`, in any form that it takes.

    Raises:
        MissingExtraError: if pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)


class Shown:
    """What a Summary, an Estimate, a Fits, a Checked, a Diff and an Inspection have in common."""

    def __str__(self) -> str:
        from torchfake.inspect import text

        return text.plain(self)

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from torchfake.inspect import terminal

        yield from terminal.renderables(self, console)

    def _repr_html_(self) -> str:
        from torchfake.inspect import html

        return html.fragment(self)

    def plot(self) -> Any:
        """A plotly figure of it, which shows itself in a notebook.

        A summary's is an icicle of parameter bytes; an estimate's is what is held at each moment.

        Raises:
            MissingExtraError: if plotly is not installed.
            TypeError: if there is no figure of such a record.
        """
        from torchfake.inspect import figures

        return figures.figure(self)

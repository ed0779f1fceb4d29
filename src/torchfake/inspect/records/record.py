"""The base class of all records of results, and the functions that decide how a record looks.

Input: a record: a dataclass of what was found. Output: its text, what rich prints, HTML, a figure.
Invariant: a record knows its data only. How each kind of record looks is registered with the
functions here from ``show``, ``figures`` and ``distributed/text``, which are imported when a record
is first shown.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from torchfake.errors import MissingExtraError


class Record:
    """What a Summary, an Estimate, a Fits, a Checked, a Diff, an Inspection and a Plan share."""

    def __str__(self) -> str:
        return plain_text(self)

    __repr__ = __str__

    if not TYPE_CHECKING:  # a type checker has to see which attributes there are

        def __getattr__(self, name: str) -> Any:
            shown = [n for n in dir(self) if not n.startswith("_")]
            has = "" if name.startswith("_") else f"; it has {', '.join(shown)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{has}")

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from renderables(self, console)

    def _repr_html_(self) -> str:
        return html_fragment(self)

    def plot(self) -> Any:
        """A plotly figure of it, which shows itself in a notebook.

        A summary's is an icicle of parameter bytes; an estimate's is what is held at each moment.

        Raises:
            MissingExtraError: if plotly is not installed.
            TypeError: if there is no figure of such a record.
        """
        return figure(self)


@singledispatch
def plain_text(record: Any, *, depth: int | None = None) -> str:
    """A record as ASCII text, columns padded to their contents.

    Args:
        record: a Summary, Estimate, Fits, Checked, Diff, Inspection or Plan.
        depth: how many levels of a tree below its root; all, if not given.

    Raises:
        TypeError: if there is no text for such a record.
    """
    raise TypeError(f"there is no text for a {type(record).__name__}")


@singledispatch
def renderables(record: Any, console: Any, *, depth: int | None = None) -> Iterator[Any]:
    """What rich is to print for a record.

    Args:
        record: any record; one without tables or colours of its own is printed as its text.
        console: rich's, to whose width it is fitted.
        depth: how many levels of a tree below its root; all, if not given.
    """
    raise TypeError(f"rich cannot print a {type(record).__name__}")


@singledispatch
def html_fragment(record: Any) -> str:
    """A record as HTML that any page takes; one without HTML of its own is its text."""
    raise TypeError(f"there is no HTML for a {type(record).__name__}")


@singledispatch
def figure(record: Any) -> Any:
    """The plotly figure of a record.

    Raises:
        TypeError: if there is no figure of such a record.
        MissingExtraError: if plotly is not installed.
    """
    raise TypeError(f"there is no figure of a {type(record).__name__}")


@singledispatch
def drawn_as(record: Any, form: str) -> str:
    """A record as a file of the form ``"svg"`` or ``"dot"``.

    Raises:
        TypeError: if there is none of such a record.
    """
    raise TypeError(f"a {type(record).__name__} cannot be drawn")


def register_on_first_use(function: Any, kind: type, module: str) -> None:
    """Have `module` imported when `function` is first called with a record of `kind`.

    Args:
        function: one of those above.
        kind: a class of records; :class:`Record` for all without a registration of their own.
        module: its full name. It registers what `function` does for `kind` or its subclasses; for
            those that it does not register, the default above is called.
    """

    @function.register(kind)  # type: ignore[untyped-decorator]
    def load(record: Any, *args: Any, **kwargs: Any) -> Any:
        importlib.import_module(module)
        found = function.dispatch(type(record))
        return (function.dispatch(object) if found is load else found)(record, *args, **kwargs)


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

"""The base class of all records of results, and the functions that display a record.

Input: a record, which is a dataclass. Output: its rows, its text, rich renderables, HTML, a figure.
Invariant: a record knows only its data. ``show``, ``figures`` and ``distributed/text`` register
with the functions here which rows are shown of each kind of record (``show/rows``), and how rows
are drawn; they are imported when a record is first displayed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

from torchfake.errors import InputsError, MissingExtraError


class Record:
    """Base class of Summary, Estimate, Fits, Checked, Diff, Inspection and Plan."""

    def __str__(self) -> str:
        return plain_text(self)

    __repr__ = __str__

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that raised: its error is the one to see
                return object.__getattribute__(self, name)
            shown = [n for n in dir(self) if not n.startswith("_")]
            has = "" if name.startswith("_") else f"; it has {', '.join(shown)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{has}")

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from renderables(self, options.max_width)

    def _repr_html_(self) -> str:
        return html_fragment(self)

    def plot(self) -> Any:
        """A plotly figure of the record, which a notebook displays.

        A summary is drawn as an icicle of parameter bytes, an estimate as bytes held over time.

        Raises:
            MissingExtraError: if plotly is not installed.
            TypeError: if there is no figure for this kind of record.
        """
        return figure(self)


@singledispatch
def shown(record: Any, *, depth: int | None = None) -> list[Any]:
    """What is shown of a record, as blocks of rows.

    Args:
        record: a Summary, Estimate, Fits, Checked, Diff, Inspection or Plan.
        depth: the number of levels shown below the root of a tree; by default all.

    Raises:
        TypeError: if nothing is shown of this kind of record.
    """
    raise TypeError(f"there is no text for a {type(record).__name__}")


@singledispatch
def plain_text(record: Any, *, depth: int | None = None) -> str:
    """The rows of a record as text, columns padded to their contents; arguments as of `shown`."""
    raise TypeError(f"there is no text for a {type(record).__name__}")


@singledispatch
def renderables(record: Any, width: int, *, depth: int | None = None) -> Iterator[Any]:
    """The rows of a record as rich renderables, a line each.

    Args:
        record: any record.
        width: the columns of the terminal.
        depth: the number of levels shown below the root of a tree; by default all.
    """
    raise TypeError(f"rich cannot print a {type(record).__name__}")


@singledispatch
def html_fragment(record: Any) -> str:
    """The rows of a record as an HTML fragment for any page."""
    raise TypeError(f"there is no HTML for a {type(record).__name__}")


@singledispatch
def figure(record: Any) -> Any:
    """The plotly figure of a record.

    Raises:
        TypeError: if there is no figure for this kind of record.
        MissingExtraError: if plotly is not installed.
    """
    raise TypeError(f"there is no figure of a {type(record).__name__}")


@singledispatch
def drawn_as(record: Any, form: str) -> str:
    """The text of a file that draws a record; `form` is ``"svg"`` or ``"dot"``.

    Raises:
        TypeError: if this kind of record cannot be drawn in that form.
    """
    raise TypeError(f"a {type(record).__name__} cannot be drawn")


class OnPage(NamedTuple):
    """What a page shows of a record: its answer, its key figures, and sections."""

    title: str
    answer: Any  # the row that answers; None if there is none
    cards: dict[str, str]  # key figures, by name
    sections: list[tuple[str, Any]]  # headings, each with HTML or blocks of rows
    verdict: str = ""  # "yes", "tight" or "no", if the answer does not begin with it
    target: str = ""  # what the user named, if that is not the title


@singledispatch
def on_page(record: Any) -> list[OnPage]:
    """What a page shows of a record; of one with several parts, of each.

    Raises:
        InputsError: if pages do not show this kind of record.
    """
    raise InputsError(f"a {type(record).__name__} cannot be reported: give results")


def register_on_first_use(function: Any, kind: type, module: str) -> None:
    """Have `module` imported when `function` is first called with a record of `kind`.

    Args:
        function: a singledispatch function of this file.
        kind: a class of records; :class:`Record` for all classes without their own registration.
        module: the full name of a module that registers implementations of `function` for `kind` or
            its subclasses; without one, the default implementation is called.
    """

    @function.register(kind)  # type: ignore[untyped-decorator]
    def load(record: Any, *args: Any, **kwargs: Any) -> Any:
        importlib.import_module(module)
        found = function.dispatch(type(record))
        return (function.dispatch(object) if found is load else found)(record, *args, **kwargs)


def data_frame(rows: Any) -> Any:
    """A pandas DataFrame of `rows`, in any form that pandas accepts.

    Raises:
        MissingExtraError: if pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)

"""One page of all that was found: works offline, needs no server.

Enters: what was found, or a module and inputs. Leaves: an HTML file. Invariant: the file is whole
or not there, and asks nothing of the network.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from torchfake.errors import InputsError, MissingExtraError
from torchfake.inspect import figures, html, text, units
from torchfake.inspect.fit import Fits
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory import Estimate, estimate
from torchfake.inspect.summary import Summary, summary

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px;
padding: 0 1em; color: #222; background: #fff}} h1 {{font-size: 1.6em}}
h2 {{font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ddd}}
.note {{color: #666}}</style>
<script>{script}</script></head><body>
<h1>{title}</h1><p class="note">{headline}</p>
{sections}
</body></html>
"""


def report(*found: Any, **options: Any) -> Path:
    """Write what was found to one HTML page: tree, memory, figures.

    ::

        report(model, inputs, "out.html", optimizer="adamw")       # a summary and an estimate
        report(summary(model), fit(found, "h100-80gb"), "out.html")  # what is there already

    Args:
        found: a module and its inputs, or any of Summary, Estimate, Fits and Inspection; last, the
            path of the file.
        options: with a module, those of :func:`estimate`.

    Returns:
        The path.

    Raises:
        MissingExtraError: if plotly is not installed.
        InputsError: if there is nothing to show, or no path.
    """
    if len(found) < 2 or not isinstance(found[-1], (str, os.PathLike)):
        raise InputsError('what is last is the path of the file: report(model, inputs, "out.html")')
    *what, path = found
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    parts = _found(what, options)
    script = _script()
    title, headline = _headline(parts)
    sections = "\n".join(
        f"<h2>{escape(name)}</h2>\n{body}" for part in parts for name, body in _sections(part)
    )
    page = _PAGE.format(
        title=escape(title), headline=escape(headline), script=script, sections=sections
    )
    return _written(page, Path(path))


def _found(what: list[Any], options: dict[str, Any]) -> list[Any]:
    if isinstance(what[0], nn.Module):
        where = {key: options[key] for key in ("device", "gpu") if key in options}
        if not what[1:] and options:
            raise InputsError(f"{', '.join(options)}: give the module's inputs too, to run it")
        parts = [summary(*what, **where)]
        return [*parts, estimate(*what, **options)] if what[1:] else parts
    if options:
        raise InputsError(f"{', '.join(options)} go with a module, not with what was found")
    for part in what:
        if not isinstance(part, (Summary, Estimate, Fits, Inspection)):
            raise InputsError(f"a {type(part).__name__} cannot be reported: give what was found")
    return what


def _headline(parts: list[Any]) -> tuple[str, str]:
    """The page's title, and the line below it."""
    title, said = "", []
    for part in parts:
        if isinstance(part, Inspection):
            part = part.summary
        if isinstance(part, Summary):
            title = title or part.tree.class_name
            said.append(dict(text.totals(part))["parameters"])
        estimated = part.estimate if isinstance(part, Fits) else part
        if isinstance(estimated, Estimate):
            title = title or estimated.class_name
            said.append(f"{estimated.mode}: {units.bytes_text(estimated.peak_bytes)} at the peak")
    return title, "; ".join(said)


def _sections(part: Any) -> Iterator[tuple[str, str]]:
    """Headings, and what is below each."""
    if isinstance(part, Inspection):
        yield from _sections(part.summary)
        yield from () if part.memory is None else _sections(part.memory)
    elif isinstance(part, Summary):
        yield "Modules", html.fragment(part)
        yield "Parameters", _figure(part.plot())
        if part.flops and sum(part.flops_of([""])):
            yield "Operations", _figure(figures.flops_figure(part))
    elif isinstance(part, Fits):
        yield "Memory, and where it fits", html.fragment(part)
        yield from _memory(part.estimate)
    else:
        yield "Memory", html.fragment(part)
        yield from _memory(part)


def _memory(estimated: Estimate) -> Iterator[tuple[str, str]]:
    yield "Memory over time", _figure(estimated.plot())
    yield "Memory at the peak", _figure(figures.peak_figure(estimated))


def _figure(made: Any) -> str:
    return str(made.to_html(full_html=False, include_plotlyjs=False))


def _script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError('a report needs plotly: pip install "torchfake[viz]"') from error
    return str(get_plotlyjs())


def _written(page: str, path: Path) -> Path:
    """Write beside the file, then give it its name: what was there stays until then."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    return path

"""``report``: summaries, estimates and fits as one HTML file, which works offline.

Input: records, or a module and inputs, and a path. Output: an HTML file. Invariant: the file is
complete or does not exist, and requests nothing from the network.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from torch import nn

from torchfake._files.disk import write_whole
from torchfake.errors import InputsError
from torchfake.inspect.dataflow.model_graph import graph_of
from torchfake.inspect.memory.estimate import estimate
from torchfake.inspect.summary import summary


def report(*found: Any, **options: Any) -> Path:
    """Write results to one HTML page: module tree, memory, figures.

    ::

        report(model, inputs, "out.html", optimizer="adamw")       # a summary and an estimate
        report(summary(model), fit(found, "h100-80gb"), "out.html")  # existing results

    Args:
        found: a module and its inputs; or one or more results of type Summary, Estimate, Fits,
            Inspection, DataflowGraph, Plan, TargetPlan, Search, ServingPlan or ServingSearch. The
            last argument is the path of the file.
        options: for a module, the options of :func:`estimate`.

    Returns:
        The path of the file.

    Raises:
        InputsError: if there is nothing to show, or no path.
    """
    if len(found) < 2 or not isinstance(found[-1], (str, os.PathLike)):
        raise InputsError(
            'the last argument is the path of the file: report(model, inputs, "out.html")'
        )
    *given, path = found
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    records = _records(given, options)
    from torchfake.inspect.figures import page  # on first use, since it imports all figures

    return _write(page.html_page(records), Path(path))


def _records(given: list[Any], options: dict[str, Any]) -> list[Any]:
    """The records to show: the given ones, or those computed for a given module."""
    if isinstance(given[0], nn.Module):
        return _of_module(given, options)
    if options:
        given_names = ", ".join(f"{name}=" for name in options)
        raise InputsError(f"{given_names}: options are for a module, not for results")
    return given


def _of_module(given: list[Any], options: dict[str, Any]) -> list[Any]:
    has_inputs = len(given) > 1
    if options and not has_inputs:
        raise InputsError(f"{', '.join(options)}: give the module's inputs too, to run it")
    where = {key: options[key] for key in ("device", "gpu") if key in options}
    found = summary(*given, **where)
    if not has_inputs:
        return [found]
    answer = options.get("answer")
    return [found, estimate(*given, **options), graph_of(*given, **where, answer=answer)]


def _write(text: str, path: Path) -> Path:
    """Write the page; an existing file is replaced only when the page is complete."""
    contents = text.encode()
    try:
        write_whole(path, contents)
    except OSError as error:  # an error of a write does not name the file
        if error.errno is None:
            raise
        reason = f"{error.strerror} (the page has {len(contents):,} bytes)"
        raise OSError(error.errno, reason, str(path)) from error
    return path

"""Commands with their times as a trace for Perfetto.

Input: commands, and when each begins and ends. Output: JSON in the Trace Event Format, which
ui.perfetto.dev and chrome://tracing open. Invariant: one row for each stream; times are
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchfake.inspect.timing.commands import Command


def trace_of(commands: Sequence[Command], begins: Any, ends: Any) -> dict[str, Any]:
    """The trace of these commands, as a dict for JSON."""
    rows = zip(commands, begins, ends, strict=True)
    events = [_event(command, float(begin), float(end)) for command, begin, end in rows]
    streams = sorted({command.place.stream for command in commands})
    return {"traceEvents": [*map(_row_name, streams), *events], "displayTimeUnit": "ms"}


def _event(command: Command, begin: float, end: float) -> dict[str, Any]:
    args: dict[str, Any] = {"module": command.place.module}
    if command.work is not None:
        args |= {"FLOPs": command.work.flops, "bytes": command.work.num_bytes}
    if command.message is not None:
        args |= {"bytes": command.message.num_bytes, "axis": command.message.axis}
    return {
        "ph": "X",
        "name": command.name,
        "cat": command.place.phase,
        "pid": 0,
        "tid": command.place.stream,
        "ts": begin * 1e6,
        "dur": (end - begin) * 1e6,
        "args": args,
    }


def _row_name(stream: int) -> dict[str, Any]:
    name = "default stream" if stream == 0 else f"stream {stream}"
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "args": {"name": name}}

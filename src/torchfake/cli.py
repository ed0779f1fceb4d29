"""The command line. The only file that prints.

Enters: arguments. Leaves: text on stdout, one line on stderr for what is wrong, and an exit code:
0 done, 2 a wrong argument or a model that cannot be built, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

import torchfake
from torchfake.errors import TorchFakeError
from torchfake.inspect import text
from torchfake.inspect.init import init_target
from torchfake.inspect.report import Report, inspect_target

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors as plain lines, not in boxes
)


Dtype = Annotated[
    str | None,
    typer.Option(help="Floating point dtype to build in, such as bf16. [default: the model's]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ShowTraceback = Annotated[
    bool,
    typer.Option("--traceback", help="On failure print the traceback; show warnings and logs."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"torchfake {torchfake.__version__}")
        raise typer.Exit


@app.callback()
def torchfake_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Models without their weights: fake tensors for PyTorch."""


@app.command("inspect")
def inspect_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="transformers:ClassName (its default config), the path of a config.json, "
            "or package.module:callable.",
        ),
    ],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KEY=VALUE",
            help="Change the config, or give the callable an argument; can be repeated. VALUE is "
            "JSON or a Python literal; dots reach inside: text_config.hidden_size=64.",
        ),
    ] = None,
    dtype: Dtype = None,
    device: Annotated[
        str, typer.Option(help="Device to build on, such as cuda:1; no GPU is needed.")
    ] = "cpu",
    depth: Annotated[
        int | None, typer.Option(min=0, help="Levels of the tree to show. [default: all]")
    ] = None,
    as_json: AsJson = False,
    show_traceback: ShowTraceback = False,
) -> None:
    """Build a model without its weights and show what it is made of.

    Prints the tree of its modules with shapes, parameter counts and bytes, equal layers folded
    into one line, then totals, the time taken and the peak memory. 1 GB is 10^9 bytes.
    """
    with _failing_in_one_line(show_traceback), _quiet(show_traceback):
        report = inspect_target(target, overrides=config or (), dtype=dtype, device=device)
    if as_json:
        print(json.dumps(report.to_dict(depth=depth), indent=2))
    elif sys.stdout.isatty():
        _show(report, depth)
    else:
        print(text.plain(report, depth=depth))


@app.command("init")
def init_command(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="As for inspect: transformers:ClassName, ...")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write; made if need be.")
    ],
    seed: Annotated[
        int, typer.Option(min=-(1 << 63), max=(1 << 64) - 1, help="Of torch's generator.")
    ] = 0,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="As for inspect."),
    ] = None,
    dtype: Dtype = None,
    max_shard_size: Annotated[str, typer.Option(help="Of a file, such as 200MB.")] = "5GB",
    threads: Annotated[
        int | None, typer.Option(min=1, help="That make values. [default: torch's]")
    ] = None,
    as_json: AsJson = False,
    show_traceback: ShowTraceback = False,
) -> None:
    """Initialise a model as eager PyTorch would, and write it to safetensors files.

    The weights are those of torch.manual_seed(SEED) followed by the constructor, bit for bit. The
    model is never in memory as a whole; from_pretrained reads the result. Run again after an
    interruption, it goes on from the last whole file.
    """
    with _failing_in_one_line(show_traceback), _quiet(show_traceback):
        written = init_target(
            target,
            out,
            overrides=config or (),
            dtype=dtype,
            seed=seed,
            max_shard_size=max_shard_size,
            threads=threads,
        )
    if as_json:
        print(json.dumps(written.to_dict(), indent=2))
        return
    for name in written.files:
        print(out / name)
    print(f"{text.bytes_text(written.num_bytes)} in {written.seconds:.1f} s")


@contextlib.contextmanager
def _failing_in_one_line(show_traceback: bool) -> Iterator[None]:
    try:
        yield
    except (TorchFakeError, OSError) as error:
        if show_traceback:
            traceback.print_exception(error)
        _fail(str(error), 2)
    except KeyboardInterrupt:
        if show_traceback:
            traceback.print_exc()
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


@contextlib.contextmanager
def _quiet(loud: bool) -> Iterator[None]:
    """Keep stdout ours while others' code runs, and unless `loud` drop its warnings and logs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not loud:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.WARNING)
        yield


def _show(report: Report, depth: int | None) -> None:
    """The report for a terminal: guides, colours, fitted to its width."""
    console = Console(highlight=False)
    shown = text.rows(report, depth=depth)
    table = _wide_table(shown)
    if console.measure(table, options=_unbounded(console)).maximum > console.width:
        table = _narrow_table(shown, console.width)
    console.print(table)
    console.print()
    if note := text.footnote(shown):
        console.print(Text(note, style="dim"))
        console.print()
    totals = Table.grid(padding=(0, 2))
    for name, said in text.summary(report):
        totals.add_row(Text(name, style="bold"), Text(said))
    console.print(totals)


def _unbounded(console: Console) -> ConsoleOptions:
    return console.options.update(width=10_000)


def _table(headers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        left = header in ("module", "tensors")
        table.add_column(
            header, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    return table


def _wide_table(rows: list[text.Row]) -> Table:
    """Everything in columns; those that are empty left out."""
    kept = text.kept_columns(rows)
    table = _table([text.HEADER[0], *(text.HEADER[i + 1] for i in kept)])
    for row in rows:
        label = Text.assemble((_guides(row), "dim"), row.label)
        table.add_row(label, *(Text(row.cells[i], style="cyan" if i == 3 else "") for i in kept))
    return table


def _narrow_table(rows: list[text.Row], width: int) -> Table:
    """Tensors beside their module where they fit and under it where not; no buffer column."""
    table = _table(text.HEADER[:3])
    parameters = max(len(text.HEADER[1]), *(len(row.parameters) for row in rows))
    left = width - parameters - max(len(text.HEADER[2]), *(len(row.bytes) for row in rows)) - 4
    for row in rows:
        table.add_row(_narrow_label(row, left), Text(row.parameters), Text(row.bytes))
    return table


def _narrow_label(row: text.Row, width: int) -> Text:
    label = Text.assemble((_guides(row), "dim"), row.label)
    beside, below = row.cells[3], _guides_below(row)
    if beside and len(label) + 2 + len(beside) <= width:
        return Text.assemble(label, "  ", (beside, "cyan"))
    fits = len(below) + len(beside) <= width
    for line in [beside] if beside and fits else row.tensors:
        label = Text.assemble(label, ("\n" + below, "dim"), (line, "cyan"))
    return label


def _guides(row: text.Row) -> str:
    if not row.is_last:
        return ""
    above = "".join("   " if last else "│  " for last in row.is_last[:-1])
    return above + ("└─ " if row.is_last[-1] else "├─ ")


def _guides_below(row: text.Row) -> str:
    return "".join("   " if last else "│  " for last in row.is_last) + "   "

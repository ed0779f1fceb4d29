"""The commands inspect, fit and diff, and the typer application with all commands.

Input: arguments of the command line. Output: text on stdout, one line on stderr for an error, and
an exit code: 0 done, 1 done and the answer is no (fit, diff), 2 a wrong argument, a model that
cannot be built or run, or a file or stdout that cannot be written, 130 interrupted. Invariant:
stdout has the answer only; what other code prints while it runs goes to stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

import torchfake
from torchfake.cli import options
from torchfake.cli.graph import graph_command
from torchfake.cli.help import GPU, MODEL, OUTPUT, Command, Group
from torchfake.cli.init import init_command
from torchfake.cli.output import (
    errors_on_one_line,
    import_answers,
    print_record,
    write_report,
    write_snapshot,
)
from torchfake.cli.plan import plan_command
from torchfake.cli.serve import serve_command
from torchfake.cli.stdout import chatter_on_stderr, progress_on_stderr
from torchfake.cli.suggestions import with_suggestions

_AS_GIVEN = (
    "accumulate", "allocator", "answer", "autocast", "batch", "keep_gradients", "lora",
    "optimizer", "seq", "train", "weights",
)  # fmt: skip
"""Options that are fields of a question as they are."""

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors as plain lines, not in boxes
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"torchfake {torchfake.__version__}")
        raise typer.Exit


@app.callback()
def torchfake_command(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    shows_progress: options.ShowsProgress = None,
) -> None:
    """Inspect, plan and initialize PyTorch models without their weights."""
    if context.invoked_subcommand != "init":  # which has a bar of its own
        context.with_resource(progress_on_stderr(context.invoked_subcommand, shows_progress))


@app.command("inspect", cls=Command)
def inspect_command(
    target: options.Target,
    config: options.Config = None,
    dtype: options.Dtype = None,
    device: Annotated[str, MODEL("Device of the model, such as cuda:1; no GPU is needed.")] = "cpu",
    depth: Annotated[
        int | None, OUTPUT("Number of tree levels to show. [default: all]", min=0)
    ] = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    lengths: options.Lengths = None,
    inputs: options.Inputs = None,
    train: options.Train = False,
    optimizer: options.OptimizerName = None,
    autocast: options.Autocast = None,
    accumulate: options.Accumulate = 1,
    keep_gradients: options.KeepGradients = False,
    decode: options.Decode = None,
    serve: options.ServeText = None,
    gpu: options.Gpu = None,
    weights: options.WeightsName = None,
    lora: options.Lora = None,
    lora_target: options.LoraTarget = None,
    profiles_file: options.Profiles = None,
    answer: options.AnswerName = None,
    allocator: options.Allocator = None,
    snapshot: options.SnapshotFile = None,
    html: options.Html = None,
    units: options.Units = None,
    macs: options.Macs = False,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Build a model without its weights and show its structure.

    Prints the module tree with shapes, parameter counts and bytes, identical layers folded
    into one line, then totals, build time and peak memory. 1 GB is 10^9 bytes.

    With --batch, --seq or any option after them the model is also run, on fakes of generated
    inputs, and outputs, operations and the memory of the step are shown.
    """
    given = locals()
    import_answers(None if profiles_file else gpu)
    from torchfake.inspect.inspection import inspect_target

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        found = inspect_target(
            target,
            overrides=config or (),
            dtype=dtype,
            device=device,
            question=_question(given, graph=html is not None),
        )
        found = replace(found, fits=with_suggestions(found.fits, _run))
        write_snapshot(found.estimate, snapshot)
        write_report(found, html, units, macs)
    with errors_on_one_line(show_traceback):
        print_record(found, as_json, depth, units=units, macs=macs)
    if not found.checkpoint.loads:
        raise typer.Exit(1)


@app.command("fit", cls=Command)
def fit_command(
    target: options.Target,
    config: options.Config = None,
    dtype: options.Dtype = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    lengths: options.Lengths = None,
    inputs: options.Inputs = None,
    train: options.Train = False,
    optimizer: options.OptimizerName = None,
    autocast: options.Autocast = None,
    accumulate: options.Accumulate = 1,
    keep_gradients: options.KeepGradients = False,
    decode: options.Decode = None,
    serve: options.ServeText = None,
    gpu: options.Gpu = None,
    weights: options.WeightsName = None,
    lora: options.Lora = None,
    lora_target: options.LoraTarget = None,
    profiles_file: options.Profiles = None,
    answer: options.AnswerName = None,
    vary: Annotated[
        str, GPU("Quantity to maximise: batch, seq, users, context or none.")
    ] = "batch",
    allocator: options.Allocator = None,
    snapshot: options.SnapshotFile = None,
    html: options.Html = None,
    units: options.Units = None,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Show on which GPUs a step fits, and the largest batch on each.

    Without --gpu a selection of common GPUs is checked, with --gpu all every known one. The exit
    status is 1 if the step fits on none.
    """
    given = locals()
    import_answers(None if profiles_file else gpu)
    from torchfake.inspect.inspection import inspect_target

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        found = inspect_target(
            target,
            overrides=config or (),
            dtype=dtype,
            question=_question(given, vary=None if vary == "none" else vary),
        )
        found = replace(found, fits=with_suggestions(found.fits, _run))
        write_snapshot(found.estimate, snapshot)
        write_report(found, html, units)
    shown: Any = found.weights if found.fits is None else found.fits
    with errors_on_one_line(show_traceback):
        print_record(shown, as_json, units=units)
    if not any(fit.fits for fit in (shown.fits if found.fits is None else shown)):
        raise typer.Exit(1)


@app.command("diff", cls=Command)
def diff_command(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A TARGET (the code of package.module:NAME runs), or a checkpoint's path.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other model or checkpoint.")],
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Show the differences between two models or checkpoints.

    Names, shapes, dtypes and bytes are compared, and configs. Only the headers of checkpoints are
    read. The exit status is 1 if there are differences.
    """
    import_answers()
    from torchfake.inspect.contents.diff import diff

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        found = diff(a, b)
    with errors_on_one_line(show_traceback):
        print_record(found, as_json)
    if not found.is_equal:
        raise typer.Exit(1)


def _question(given: dict[str, Any], **others: Any) -> Any:
    """The question that the arguments of ``inspect`` or ``fit`` ask; `others` are fields of it."""
    from torchfake.inspect.question import Question

    gpus = options.parse_gpus(given["gpu"], given["profiles_file"])
    return Question(
        **{name: given[name] for name in _AS_GIVEN},
        decode=options.parse_decode(given["decode"]),
        gpus=(gpus or ()) if "vary" in given else gpus,
        serve=None if given["serve"] is None else options.parse_serve(given["serve"]),
        lora_target=options.parse_names("--lora-target", given["lora_target"]),
        inputs=tuple(given["inputs"] or ()),
        profiles_options=options.profiles_words(given["profiles_file"]),
        lengths=options.parse_lengths(given["lengths"]),
        **others,
    )


def _run(words: Sequence[str]) -> Any:
    """Run a command, and return its exit code."""
    return app([*words], standalone_mode=False)


app.command("init", cls=Command)(init_command)
app.command("graph", cls=Command)(graph_command)
app.command("plan", cls=Command)(plan_command)
app.command("serve", cls=Command)(serve_command)

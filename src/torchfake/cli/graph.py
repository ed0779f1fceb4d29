"""The command ``torchfake graph``.

Input: arguments of the command line. Output: a graph on stdout, and in files. Invariant: the graph
is that of ``graph_of``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torchfake.cli import options
from torchfake.cli.help import OUTPUT
from torchfake.cli.output import errors_on_one_line, import_answers, print_record
from torchfake.cli.stdout import chatter_on_stderr

Depth = Annotated[
    int | None,
    OUTPUT("Module levels to expand. [default: as many as give at most 40 boxes]", min=1),
]
Functions = Annotated[
    str,
    OUTPUT(
        "Functions to show between modules: joining (those that join several, such as the "
        "addition of a residual), all or none."
    ),
]
NoFold = Annotated[
    bool, OUTPUT("Show identical layers separately instead of folding them.", "--no-fold")
]
Svg = Annotated[Path | None, OUTPUT("Also write it as SVG.", metavar="FILE")]
Dot = Annotated[Path | None, OUTPUT("Also write it for Graphviz.", metavar="FILE")]


def graph_command(
    target: options.Target,
    config: options.Config = None,
    dtype: options.Dtype = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    inputs: options.Inputs = None,
    depth: Depth = None,
    functions: Functions = "joining",
    no_fold: NoFold = False,
    answer: options.AnswerName = None,
    svg: Svg = None,
    dot: Dot = None,
    units: options.Units = None,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Show what the modules of a model pass to each other.

    Prints boxes and edges, with shapes and bytes. The model is run once on fakes of generated
    inputs. Identical layers are folded into one box.
    """
    import_answers()
    from torchfake._files.disk import write_whole
    from torchfake.inspect.inspection import graph_target
    from torchfake.inspect.question import Question
    from torchfake.inspect.records.units import shown_in

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        found = graph_target(
            target,
            Question(batch, seq, inputs=tuple(inputs or ()), answer=answer),
            overrides=config or (),
            dtype=dtype,
            depth=depth,
            functions=functions,
            fold=not no_fold,
        )
        with shown_in(units):
            for path, draw in ((svg, found.to_svg), (dot, found.to_dot)):
                if path is not None:
                    write_whole(path, draw().encode())
    with errors_on_one_line(show_traceback):
        print_record(found, as_json, units=units)

"""The command ``torchfake init``.

Input: arguments of the command line. Output: safetensors files, their names on stdout. Invariant:
the files are those of ``init_target``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchfake.cli import options
from torchfake.cli.help import OUTPUT
from torchfake.cli.output import errors_on_one_line, import_answers
from torchfake.cli.stdout import chatter_on_stderr, json_text
from torchfake.errors import printable


def init_command(
    target: options.Target,
    out: Annotated[
        Path, OUTPUT("Output directory; created if necessary.", "--out", "-o", metavar="DIR")
    ],
    seed: Annotated[int, typer.Option(min=-(1 << 63), max=(1 << 64) - 1, help="Random seed.")] = 0,
    config: options.Config = None,
    dtype: options.Dtype = None,
    max_shard_size: Annotated[str, OUTPUT("Maximum size of a file, such as 200MB.")] = "5GB",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads. [default: torch's]")
    ] = None,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Initialize a model as eager PyTorch would, to safetensors files.

    The weights are equal, bit for bit, to those after torch.manual_seed(SEED) and the constructor.
    The whole model is never in memory; from_pretrained reads the result. After an interruption, the
    same command continues after the last complete file.
    """
    import_answers()
    from torchfake.inspect.records.units import bytes_text
    from torchfake.inspect.targets.initialize import init_target

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
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
        print(json_text(written.to_dict()))
        return
    for name in written.files:
        print(printable(str(out / name)))
    print(f"{bytes_text(written.num_bytes)} in {written.seconds:.1f} s")

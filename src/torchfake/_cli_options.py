"""The options of the ``torchfake`` command that several of its subcommands take.

Input: nothing. Output: a type for each, with its help. Invariant: an option means the same wherever
it is taken. Called by: ``cli``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchfake._core.gpu_profiles import profiles


def complete_gpu(prefix: str) -> list[str]:
    """The names of GPUs that begin so."""
    return [name for name in profiles() if name.startswith(prefix)]


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="transformers:ClassName, timm:NAME, torchvision:NAME or diffusers:CLASS (its default "
        "config); the path of a config.json or of its folder, with the headers of a checkpoint if "
        "there is one; an id of the Hugging Face Hub, organisation/name (config and headers). Of "
        "these only the library's code runs. Or package.module:callable or "
        "path/to/file.py:callable, which is imported and called: its code runs.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="Change the config, or give the callable an argument; can be repeated. VALUE is "
        "JSON or a Python literal; dots reach inside: text_config.hidden_size=64.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Floating point dtype to build in, such as bf16. [default: the model's]"),
]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Run it, on a batch of so many. [default: 1, if run]")
]
Seq = Annotated[int | None, typer.Option(min=1, help="Run it, on so many tokens.")]
Train = Annotated[bool, typer.Option("--train", help="A training step rather than inference.")]
OptimizerName = Annotated[
    str | None, typer.Option(help="Of the training step, by its name in torch.optim: adamw.")
]
Accumulate = Annotated[
    int, typer.Option(min=1, help="Micro-batches of a training step; --batch is of one.")
]
KeepGradients = Annotated[
    bool, typer.Option("--keep-gradients", help="Set gradients to zero, and do not free them.")
]
Autocast = Annotated[str | None, typer.Option(help="The dtype of autocast, such as bf16.")]
Decode = Annotated[
    str | None,
    typer.Option(metavar="PROMPT,NEW", help="Generate NEW tokens after a prompt of PROMPT."),
]
ServeText = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="CONTEXT[,KEY=VALUE...]",
        help="Serve sequences of CONTEXT tokens: users=16, cache=paged, dynamic, static or "
        "quantized, cache_dtype=fp8, block_size=16, prompt=4096, prefill=2048, backend=hqq.",
    ),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        help="A GPU that it is to fit on, such as h100-80gb; can be repeated.",
        autocompletion=complete_gpu,
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option("--profiles", metavar="FILE", help="A TOML file with GPUs of your own."),
]
AnswerName = Annotated[
    str | None,
    typer.Option("--answer", help="Answers what it asks of values that do not exist: typical."),
]
Units = Annotated[
    str | None,
    typer.Option(help="Of bytes: GB, GiB, both. [default: GB, both where sizes are compared]"),
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write one page with figures as well.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ShowTraceback = Annotated[
    bool,
    typer.Option("--traceback", help="On failure print the traceback; show warnings and logs."),
]
Allocator = Annotated[
    str | None,
    typer.Option(
        metavar="OPTIONS",
        help="Of CUDA's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True.",
    ),
]
SnapshotFile = Annotated[
    Path | None,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="Write a memory snapshot of the step on a GPU as well, for pytorch.org/memory_viz.",
    ),
]

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
    int | None, typer.Option(min=1, help="Batch size; runs the model. [default: 1, if it is run]")
]
Seq = Annotated[int | None, typer.Option(min=1, help="Sequence length in tokens; runs the model.")]
Train = Annotated[bool, typer.Option("--train", help="Run a training step rather than inference.")]
OptimizerName = Annotated[
    str | None,
    typer.Option(help="Optimizer of the training step, by its name in torch.optim: adamw."),
]
Accumulate = Annotated[
    int,
    typer.Option(
        min=1,
        help="Micro-batches (gradient accumulation steps) of a training step, each of --batch.",
    ),
]
KeepGradients = Annotated[
    bool,
    typer.Option(
        "--keep-gradients", help="Zero the gradients between steps instead of freeing them."
    ),
]
Autocast = Annotated[
    str | None, typer.Option(help="Run under torch.autocast with this dtype, such as bf16.")
]
Decode = Annotated[
    str | None,
    typer.Option(metavar="PROMPT,NEW", help="Generate NEW tokens after a prompt of PROMPT tokens."),
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
        metavar="NAME[,NAME...]",
        help="GPUs that it is to fit on, such as h100 or a100-80gb,rtx4090; can be repeated.",
        autocompletion=complete_gpu,
    ),
]
WeightsName = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="SCHEME",
        help="The size of the weights quantized: nf4 (bitsandbytes), int4, int8 or fp8 (torchao). "
        "Nothing is run.",
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option("--profiles", metavar="FILE", help="A TOML file with GPUs of your own."),
]
AnswerName = Annotated[
    str | None,
    typer.Option("--answer", help="What to assume where the model branches on values: typical."),
]
Units = Annotated[
    str | None,
    typer.Option(
        help="Units of bytes: GB, GiB or both. [default: GB; both where sizes are compared]"
    ),
]
Macs = Annotated[
    bool, typer.Option("--macs", help="Show multiply-accumulates (MACs) in place of FLOPs.")
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write an HTML page with figures.")
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
        help="Options of CUDA's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True.",
    ),
]
SnapshotFile = Annotated[
    Path | None,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="Also write a memory snapshot of the step, which pytorch.org/memory_viz opens.",
    ),
]

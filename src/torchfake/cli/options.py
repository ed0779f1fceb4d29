"""The options that several subcommands of ``torchfake`` take, and parsers of their text.

Input: the text of an option. Output: an annotated type for each option, with its help text; values
that the Python functions take. Invariant: an option has the same meaning in all subcommands; text
that is invalid is an error that says what the option takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from torchfake._core.gpu_profiles import CudaProfile, named_profiles, profiles
from torchfake.cli.help import GPU, INPUT, MODEL, OUTPUT, SERVING, TRAINING
from torchfake.errors import InputsError


def complete_gpu(prefix: str) -> list[str]:
    """The names of GPUs that begin with `prefix`."""
    return [name for name in profiles() if name.startswith(prefix)]


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="transformers:ClassName, timm:NAME, torchvision:NAME or diffusers:CLASS (its default "
        "config); the path of a config.json or of its folder (checkpoint headers are read if there "
        "are any); or a Hugging Face Hub id, organisation/name (config and headers). These run the "
        "library's code only. Or package.module:NAME or path/to/file.py:NAME, a class, a function "
        "that returns a module, or a module: this runs its code.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="Change a config entry, or pass an argument to the callable; repeatable. VALUE is "
        "JSON or a Python literal; dots address nested entries: text_config.hidden_size=64.",
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Floating-point dtype of the model, such as bf16 or fp16. [default: the model's]",
        rich_help_panel=MODEL,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Batch size on one GPU, of each micro-batch; runs the model. [default: 1, if it is "
        "run]",
        rich_help_panel=INPUT,
    ),
]
Seq = Annotated[
    int | None,
    typer.Option(min=1, help="Sequence length in tokens; runs the model.", rich_help_panel=INPUT),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N[,N...]",
        help="Steps with inputs of these lengths, in order, as padding per batch gives them: "
        "memory is reserved for all.",
        rich_help_panel=INPUT,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]DTYPE[SIZES]",
        help="An argument of forward, for a module of your own; repeatable; runs the model: 8,64 "
        "(in the dtype of the parameters), int64[8,64], ids=int64[8,64], or lengths=int64[8]=64, "
        "with a value. Other values are unknown.",
        rich_help_panel=INPUT,
    ),
]
Train = Annotated[
    bool,
    typer.Option(
        "--train", help="Run a training step rather than inference.", rich_help_panel=TRAINING
    ),
]
OptimizerName = Annotated[
    str | None,
    typer.Option(
        help="Optimizer of the training step, a name from torch.optim, or none. [default: adamw]",
        show_default=False,
        rich_help_panel=TRAINING,
    ),
]
Accumulate = Annotated[
    int,
    typer.Option(
        min=1,
        help="Micro-batches (gradient accumulation steps) of a training step, each of --batch.",
        rich_help_panel=TRAINING,
    ),
]
KeepGradients = Annotated[
    bool,
    typer.Option(
        "--keep-gradients",
        help="Zero the gradients between steps instead of freeing them.",
        rich_help_panel=TRAINING,
    ),
]
Autocast = Annotated[
    str | None,
    typer.Option(
        help="Run under torch.autocast with this dtype, such as bf16.", rich_help_panel=TRAINING
    ),
]
Decode = Annotated[
    str | None,
    typer.Option(
        metavar="PROMPT,NEW",
        help="Generate NEW tokens after a prompt of PROMPT tokens.",
        rich_help_panel=SERVING,
    ),
]
ServeText = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="CONTEXT[,KEY=VALUE...]",
        help="Serve sequences of CONTEXT tokens: users=16, cache=paged, dynamic, static or "
        "quantized, cache_dtype=fp8, block_size=16, prompt=4096, prefill=2048, backend=hqq.",
        rich_help_panel=SERVING,
    ),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        help="GPUs to check, such as h100 or a100-80gb,rtx4090; repeatable.",
        autocompletion=complete_gpu,
        rich_help_panel=GPU,
    ),
]
WeightsName = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="SCHEME",
        help="Quantize the weights to 4 or 8 bits: nf4 or bnb-int8 (bitsandbytes), int4, int8 or "
        "fp8 (torchao); a step runs the library's layers. Without a step, and for gptq and awq, "
        "the size of the weights is shown.",
        rich_help_panel=MODEL,
    ),
]
Lora = Annotated[
    int | None,
    typer.Option(
        "--lora",
        min=1,
        metavar="RANK",
        help="Train LoRA adapters of this rank (PEFT) in place of the weights; with --weights nf4, "
        "QLoRA.",
        rich_help_panel=TRAINING,
    ),
]
LoraTarget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LAYER[,LAYER...]",
        help="Layers with adapters, such as q_proj,v_proj. [default: all linear layers]",
        rich_help_panel=TRAINING,
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option(
        "--profiles",
        metavar="FILE",
        help="TOML file with GPU profiles of your own.",
        rich_help_panel=GPU,
    ),
]
AnswerName = Annotated[
    str | None,
    typer.Option(
        "--answer",
        help="What to assume where the model reads unknown values: typical.",
        rich_help_panel=INPUT,
    ),
]
Units = Annotated[
    str | None,
    typer.Option(
        help="Units of bytes: GB, GiB or both. [default: GB; both where sizes are compared]",
        rich_help_panel=OUTPUT,
    ),
]
Macs = Annotated[
    bool,
    typer.Option(
        "--macs", help="Show multiply-accumulates (MACs) instead of FLOPs.", rich_help_panel=OUTPUT
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write an HTML report.", rich_help_panel=OUTPUT),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT)
]
ShowTraceback = Annotated[
    bool,
    typer.Option(
        "--traceback",
        help="Print the traceback on failure; show warnings and logs.",
        rich_help_panel=OUTPUT,
    ),
]
Allocator = Annotated[
    str | None,
    typer.Option(
        metavar="OPTIONS",
        help="Options of CUDA's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True.",
        rich_help_panel=GPU,
    ),
]
SnapshotFile = Annotated[
    Path | None,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="Also write a memory snapshot of the step, for pytorch.org/memory_viz.",
        rich_help_panel=OUTPUT,
    ),
]
ShowsProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show a counter of the runs on stderr. [default: after a second, on a terminal]",
    ),
]


def parse_gpus(
    names: Sequence[str] | None, file: Path | None
) -> tuple[str | CudaProfile, ...] | None:
    """The named GPUs, which may be defined in `file`; all GPUs of the file if none is named.

    Raises:
        DeviceError: if a name matches no GPU, or several.
    """
    own = {} if file is None else _profiles_in(file)
    if names is None:
        return tuple(own.values()) or None
    single = [name.strip() for text in names for name in text.split(",")]
    given = [own.get(n, n) for n in single]
    found = named_profiles(given, "--gpu")
    return tuple(gpu if gpu in given else key for key, gpu in found.items())


def parse_numbers_of_gpus(
    texts: Sequence[str] | None, file: Path | None
) -> dict[str | CudaProfile, int | None]:
    """The GPUs in texts of the form ``NAME,NAME:NUMBER``, which may be defined in `file`, with
    their numbers.

    Raises:
        DeviceError: if a name matches no GPU, or several.
        InputsError: if a number is none.
    """
    if texts is None:
        return dict.fromkeys(parse_gpus(None, file) or ())
    found: dict[str | CudaProfile, int | None] = {}
    for text in parse_names("--gpu", texts):
        name, colon, number = text.partition(":")
        if colon and not (number.isdecimal() and int(number)):
            raise InputsError(f"--gpu {text!r} is not NAME:NUMBER, such as h100-80gb:2")
        found |= dict.fromkeys(parse_gpus([name], file) or (), int(number) if colon else None)
    return found


def _profiles_in(file: Path) -> dict[str, CudaProfile]:
    from torchfake.inspect.gpu_files import read_profiles

    return read_profiles(file)


def parse_names(option: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    """The names in texts of the form ``NAME,NAME``.

    Raises:
        InputsError: if a text has an empty name.
    """
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if not all(names):
        raise InputsError(f"{option} {','.join(texts or ())!r} has an empty name")
    return tuple(names)


def parse_prices(texts: Sequence[str] | None) -> dict[str, float]:
    """The prices in texts of the form ``GPU=PRICE``.

    Raises:
        InputsError: if a text has another form.
    """
    found = {}
    for text in parse_names("--price", texts):
        name, _, price = text.partition("=")
        try:
            found[name] = float(price)
        except ValueError as error:
            raise InputsError(f"--price {text!r} is not GPU=PRICE, such as h100=2.5") from error
    return found


def parse_decode(text: str | None) -> tuple[int, int] | None:
    """The two numbers of ``PROMPT,NEW``."""
    if text is None:
        return None
    prompt, _, new = text.partition(",")
    try:
        return int(prompt), int(new)
    except ValueError as error:
        raise InputsError(f"--decode {text!r} is not PROMPT,NEW, such as 1024,256") from error


def parse_lengths(text: str | None) -> tuple[int, ...] | None:
    """The numbers of ``N,N``."""
    if text is None:
        return None
    numbers = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and int(each) for each in numbers):
        raise InputsError(f"--lengths {text!r} is not N,N, such as 512,384,640")
    return tuple(map(int, numbers))


def profiles_words(file: Path | None) -> tuple[str, ...]:
    """The words of a command that name a file of GPUs."""
    return () if file is None else ("--profiles", str(file))

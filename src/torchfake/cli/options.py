"""The options that several subcommands of ``torchfake`` take, and parsers of their text.

Input: the text of an option. Output: an annotated type for each option, with its help text; values
that the Python functions take. Invariant: an option has the same meaning in all subcommands; text
that is invalid is an error that says what the option takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from torchfake._core.gpu_profiles import CudaProfile, named_profiles, profiles
from torchfake.cli.help import GPU, INPUT, MODEL, OUTPUT, SERVING, TRAINING
from torchfake.errors import InputsError, TargetError, did_you_mean


def complete_gpu(prefix: str) -> list[str]:
    """The names of GPUs that begin with `prefix`."""
    return [name for name in profiles() if name.startswith(prefix)]


def whole_number(text: str) -> int | None:
    """The whole number that a text is, ``"8192"`` or ``"8k"``; None if it is none."""
    found = re.fullmatch(r"\s*([0-9]{1,18})(k?)\s*", text, re.IGNORECASE)
    return None if found is None else int(found[1]) * (1024 if found[2] else 1)


def tokens(least: int = 1) -> Callable[[object], int]:
    """A parser of a number of tokens, `least` or more."""

    def parse(text: object) -> int:
        number = whole_number(str(text))
        if number is None or number < least:
            what = f"a whole number of {least} or more, such as 4096 or 4k"
            raise typer.BadParameter(f"{text!r} is not {what}")
        return number

    return parse


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
    MODEL(
        "Change a config entry, or pass an argument to the callable; repeatable. VALUE is "
        "JSON or a Python literal; dots address nested entries: text_config.hidden_size=64.",
        "--config",
        "-c",
        metavar="KEY=VALUE",
    ),
]
Dtype = Annotated[
    str | None,
    MODEL("Floating-point dtype of the model, such as bf16 or fp16. [default: the model's]"),
]
Batch = Annotated[
    int | None,
    INPUT(
        "Batch size on one GPU, of each micro-batch; runs the model. [default: 1, if it is run]",
        min=1,
    ),
]
Seq = Annotated[
    int | None,
    INPUT(
        "Sequence length, such as 4096 or 4k; runs the model.", parser=tokens(), metavar="TOKENS"
    ),
]
Lengths = Annotated[
    str | None,
    INPUT(
        "Run a step of each of these lengths in turn, such as 512,4096,1024: batches that are "
        "padded differently, whose memory the allocator keeps.",
        metavar="N[,N...]",
    ),
]
Inputs = Annotated[
    list[str] | None,
    INPUT(
        "An argument of forward, for a module of your own; repeatable; runs the model: 8,64 "
        "(in the dtype of the parameters), int64[8,64], ids=int64[8,64], or lengths=int64[8]=64, "
        "with a value. Other values are unknown.",
        "--input",
        metavar="[NAME=]DTYPE[SIZES]",
    ),
]
Train = Annotated[bool, TRAINING("Run a training step rather than inference.", "--train")]
OptimizerName = Annotated[
    str | None,
    TRAINING(
        "Optimizer of the training step, a name from torch.optim, or none. [default: adamw]",
        show_default=False,
    ),
]
Accumulate = Annotated[
    int,
    TRAINING(
        "Micro-batches (gradient accumulation steps) of a training step, each of --batch.", min=1
    ),
]
KeepGradients = Annotated[
    bool, TRAINING("Zero the gradients between steps instead of freeing them.", "--keep-gradients")
]
Autocast = Annotated[
    str | None, TRAINING("Run under torch.autocast with this dtype, such as bf16.")
]
Decode = Annotated[
    str | None,
    SERVING("Generate NEW tokens after a prompt of PROMPT tokens.", metavar="PROMPT,NEW"),
]
ServeText = Annotated[
    str | None,
    SERVING(
        "Serve sequences of CONTEXT tokens: users=16, cache=paged, dynamic, static or "
        "quantized, cache_dtype=fp8, block_size=16, prompt=4096, prefill=2048, backend=hqq.",
        "--serve",
        metavar="CONTEXT[,KEY=VALUE...]",
    ),
]
Gpu = Annotated[
    list[str] | None,
    GPU(
        "GPUs to check, such as h100 or a100-80gb,rtx4090; repeatable.",
        metavar="NAME[,NAME...]",
        autocompletion=complete_gpu,
    ),
]
WeightsName = Annotated[
    str | None,
    MODEL(
        "Quantize the weights to 4 or 8 bits: nf4 or bnb-int8 (bitsandbytes), int4, int8 or "
        "fp8 (torchao); a step runs the library's layers. Without a step, and for gptq and awq, "
        "the size of the weights is shown.",
        "--weights",
        metavar="SCHEME",
    ),
]
Lora = Annotated[
    int | None,
    TRAINING(
        "Train LoRA adapters of this rank (PEFT) in place of the weights; with --weights nf4, "
        "QLoRA.",
        "--lora",
        min=1,
        metavar="RANK",
    ),
]
LoraTarget = Annotated[
    list[str] | None,
    TRAINING(
        "Layers with adapters, such as q_proj,v_proj. [default: all linear layers]",
        metavar="LAYER[,LAYER...]",
    ),
]
Profiles = Annotated[
    Path | None, GPU("TOML file with GPU profiles of your own.", "--profiles", metavar="FILE")
]
AnswerName = Annotated[
    str | None,
    INPUT(
        "typical: where the model's code reads values that fakes do not have, assume those of a "
        "healthy run (checks pass, loops go on, masks keep everything). [default: an error]",
        "--answer",
        metavar="typical",
    ),
]
Units = Annotated[
    str | None,
    OUTPUT("Units of bytes: GB, GiB or both. [default: GB; both where sizes are compared]"),
]
Macs = Annotated[bool, OUTPUT("Show multiply-accumulates (MACs) instead of FLOPs.", "--macs")]
Html = Annotated[Path | None, OUTPUT("Also write an HTML report.", metavar="FILE")]
AsJson = Annotated[bool, OUTPUT("Print the result as JSON.", "--json")]
ShowTraceback = Annotated[
    bool, OUTPUT("Print the traceback on failure; show warnings and logs.", "--traceback")
]
Allocator = Annotated[
    str | None,
    GPU(
        "Options of CUDA's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True.",
        metavar="OPTIONS",
    ),
]
SnapshotFile = Annotated[
    Path | None,
    OUTPUT(
        "Also write a memory snapshot of the step, for pytorch.org/memory_viz.",
        "--snapshot",
        metavar="FILE",
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


def parse_serve(text: str) -> Any:
    """The ``Serve`` that a text describes: ``CONTEXT`` or ``CONTEXT,KEY=VALUE,...``.

    Raises:
        TargetError: if the text does not have this form.
        InputsError: as ``Serve`` does.

    >>> parse_serve("8k,users=16,cache=static").context
    8192
    """
    from torchfake.inspect.serve import Serve

    known = [field.name for field in fields(Serve)]
    values: dict[str, Any] = {}
    for i, part in enumerate(text.split(",")):
        key, _, value = part.strip().partition("=")
        if i == 0 and whole_number(key) is not None:
            key, value = "context", key
        if key not in known:
            raise TargetError(
                f"--serve {text!r}: give CONTEXT,KEY=VALUE,... such as 8192,users=16,cache=static; "
                f"{part.strip()!r} is none of {', '.join(known)}{did_you_mean(key, known)}"
            )
        number = whole_number(value)
        values[key] = value if number is None else number
    if "context" not in values:
        raise TargetError(f"--serve {text!r} names no context: 8192, or context=8192")
    return Serve(**values)


def parse_decode(text: str | None) -> tuple[int, int] | None:
    """The two numbers of ``PROMPT,NEW``."""
    if text is None:
        return None
    prompt, new = map(whole_number, text.partition(",")[::2])
    if prompt is None or new is None:
        raise InputsError(f"--decode {text!r} is not PROMPT,NEW, such as 1024,256")
    return prompt, new


def parse_lengths(text: str | None) -> tuple[int, ...] | None:
    """The numbers of ``N,N``."""
    if text is None:
        return None
    try:
        return tuple(map(tokens(), text.split(",")))
    except typer.BadParameter as error:
        raise InputsError(f"--lengths {text!r} is not N,N, such as 512,384,640") from error


def profiles_words(file: Path | None) -> tuple[str, ...]:
    """The words of a command that name a file of GPUs."""
    return () if file is None else ("--profiles", str(file))

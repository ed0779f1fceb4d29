"""The command ``torchfake plan``, and the options that only this command takes.

Input: arguments of the command line. Output: a plan on stdout; exit code 1 if the model does not
fit. Invariant: the plan is that of ``plan_target`` or ``search_layouts``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake.cli import options
from torchfake.cli.help import GPU, INPUT, LAYOUT, OUTPUT, TRAINING
from torchfake.cli.output import errors_on_one_line, import_answers, print_record, write_report
from torchfake.cli.stdout import chatter_on_stderr
from torchfake.errors import InputsError

Gpus = Annotated[int | None, GPU("Number of GPUs. [default: the size of the mesh]", min=1)]
EachGpu = Annotated[
    str | None,
    GPU(f"Type of the GPUs. [default: {DEFAULT_PROFILE}]", autocompletion=options.complete_gpu),
]
Network = Annotated[
    float | None,
    GPU("Bandwidth between nodes of 8, in Gb/s for each GPU. [default: 400]", metavar="GBITS"),
]
Mesh = Annotated[
    str | None,
    LAYOUT(
        "Mesh axes, outermost first: dp shards parameters (FSDP2), replicate keeps copies "
        "(DDP; HSDP with dp), tp splits tensors (tensor parallelism), cp sequences (context), ep "
        "experts, pp layers (pipeline). Remaining GPUs go to dp. [default: dp for all]",
        metavar="NAME=SIZE,...",
    ),
]
GlobalBatch = Annotated[
    int | None, INPUT("Global batch size of a step. [default: micro-batches of 1]", min=1)
]
MicroBatch = Annotated[
    int | None,
    INPUT("Batch size of one forward pass on each data-parallel rank. [default: all]", min=1),
]
Accumulate = Annotated[
    int | None, INPUT("Micro-batches (gradient accumulation steps) in a step. [default: 1]", min=1)
]
Checkpoint = Annotated[
    str,
    TRAINING(
        "Activation checkpointing of the blocks: none, selective or full; the number of "
        "blocks (12); or which ones (full:0-11,selective:12-15)."
    ),
]
Precision = Annotated[
    str | None,
    TRAINING(
        "mixed (float32 parameters, bfloat16 computation), bf16 or fp32. [default: mixed; "
        "bf16 with --lora or --weights]",
        show_default=False,
    ),
]
OptimizerName = Annotated[
    str, TRAINING("Optimizer, a name from torch.optim, or none.", "--optimizer")
]
Zero = Annotated[
    int | None,
    LAYOUT(
        "ZeRO stage: 3, or 2, which keeps gathered parameters until backward; with ddp: 0, or "
        "1, which splits the optimizer state. [default: 3; with ddp 0]",
        show_default=False,
    ),
]
Engine = Annotated[str, LAYOUT("Data-parallel engine: fsdp2, fsdp1 or ddp.")]
Offload = Annotated[bool, LAYOUT("Keep the shards in CPU memory.", "--offload")]
SequenceParallel = Annotated[
    bool,
    LAYOUT("Also split the sequence along tp, where tensors are not split.", "--sequence-parallel"),
]
InputsFunction = Annotated[
    str | None,
    INPUT(
        "Function of batch and, if given, seq that returns the arguments of forward; its code "
        "runs. Not needed for transformers models.",
        metavar="FILE:FUNCTION",
    ),
]
ShowsCode = Annotated[bool, OUTPUT("Print the PyTorch code of the layout.", "--code")]


ScheduleName = Annotated[
    str | None,
    LAYOUT(
        "Pipeline schedule (pp in the mesh): 1f1b, gpipe, interleaved, breadth-first, "
        "zero-bubble, zbv, dualpipev. [default: 1f1b]",
        "--schedule",
        show_default=False,
    ),
]
Searches = Annotated[
    bool,
    LAYOUT(
        "Try meshes, checkpointing and micro-batches for --gpus and --batch: the fastest "
        "layout that fits, and the fewest GPUs on which one does.",
        "--search",
    ),
]


_OF_ANY_LAYOUT = (
    "gpus", "seq", "batch", "precision", "optimizer", "zero", "engine", "answer", "allocator",
    "weights", "lora", "network",
)  # fmt: skip
_OF_ONE_LAYOUT = (
    "mesh", "micro_batch", "accumulate", "offload", "sequence_parallel", "schedule", "checkpoint",
)  # fmt: skip
"""Arguments of Python functions that are options of the same name: a search finds the latter."""


def plan_command(
    target: options.Target,
    gpus: Gpus = None,
    gpu: EachGpu = None,
    network: Network = None,
    mesh: Mesh = None,
    seq: options.Seq = None,
    batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    accumulate: Accumulate = None,
    checkpoint: Checkpoint = "none",
    precision: Precision = None,
    optimizer: OptimizerName = "adamw",
    zero: Zero = None,
    engine: Engine = "fsdp2",
    offload: Offload = False,
    sequence_parallel: SequenceParallel = False,
    schedule: ScheduleName = None,
    config: options.Config = None,
    written: options.Inputs = None,
    inputs: InputsFunction = None,
    profiles_file: options.Profiles = None,
    answer: options.AnswerName = None,
    allocator: options.Allocator = None,
    weights: options.WeightsName = None,
    lora: options.Lora = None,
    lora_target: options.LoraTarget = None,
    code: ShowsCode = False,
    serves: options.ServeText = None,
    search: Searches = False,
    html: options.Html = None,
    units: options.Units = None,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Check whether a model trains on a number of GPUs.

    Shows what each GPU holds and sends, and how long a step takes. The model's repeated blocks are
    sharded by FSDP2. With an axis tp in the mesh, tensors are split by the tensor-parallel plan
    that ships with transformers models. Of ranks that do the same, one is run on fakes. The exit
    status is 1 if the model does not fit.
    """
    arguments = locals()
    import_answers([gpu] if gpu and not profiles_file else None)
    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        from torchfake.distributed import plan_target, search_layouts  # import torch.distributed

        given: dict[str, Any] = {
            **{name: arguments[name] for name in _OF_ANY_LAYOUT},
            "gpu": _gpu(gpu, profiles_file),
            "overrides": config or (),
            "inputs": _inputs(written, inputs),
            "lora_target": options.parse_names("--lora-target", lora_target),
        }
        layout = {name: arguments[name] for name in _OF_ONE_LAYOUT}
        if serves is not None:
            found: Any = _served(target, serves, given, mesh)
        elif search:
            _check_search(gpus, batch, layout | {"checkpoint": checkpoint != "none"})
            found = search_layouts(target, **given, shows_code=code)
        else:
            found = plan_target(target, **given, **layout, shows_code=code)
        write_report(found, html, units)
    with errors_on_one_line(show_traceback):
        print_record(found, as_json, units=units)
    if not found.fits:
        raise typer.Exit(1)


def _served(target: str, text: str, given: dict[str, Any], mesh: str | None) -> Any:
    """The plan of a server, for ``--serve``: as ``torchfake serve`` with the same options."""
    from torchfake.distributed import serve
    from torchfake.inspect.serve import PAGED

    asked = options.parse_serve(text)
    if asked.cache != PAGED:
        raise InputsError(f"a server has a paged cache, not {asked.cache_name}: leave out cache=")
    taken = {name: given[name] for name in ("gpus", "gpu", "weights", "overrides")}
    names = ("users", "context", "prompt", "cache_dtype", "block_size")
    taken |= {name: getattr(asked, name) for name in names}
    taken |= {} if asked.prefill is None else {"pass_tokens": asked.prefill}
    return serve(target, mesh=mesh, **taken)


def _check_search(gpus: int | None, batch: int | None, chosen: dict[str, Any]) -> None:
    if gpus is None or batch is None:
        raise InputsError("--search needs --gpus and --batch, for which it tries layouts")
    named = [f"--{name.replace('_', '-')}" for name, value in chosen.items() if value]
    if named:
        raise InputsError(f"--search chooses the layout: leave out {', '.join(named)}")


def _inputs(written: list[str] | None, function: str | None) -> str | list[str] | None:
    if written and function is not None:
        raise InputsError("--input and --inputs say both what the inputs are: give one of them")
    return written or function


def _gpu(name: str | None, file: Path | None) -> str | CudaProfile:
    given = options.parse_gpus(None if name is None else [name], file)
    if given and len(given) > 1:
        raise InputsError(f"the GPUs of a plan are of one kind: --gpu names {len(given)}")
    return given[0] if given else DEFAULT_PROFILE

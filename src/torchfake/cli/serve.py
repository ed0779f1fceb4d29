"""The command ``torchfake serve``, and the options that only this command takes.

Input: arguments of the command line. Output: a plan of a server on stdout, or the best of a search;
exit code 1 if the users do not fit, or nothing meets the limits. Invariant: the answer is that of
``serve`` or ``search_servers``.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchfake._core.gpu_profiles import DEFAULT_PROFILE
from torchfake.cli.help import GPU, LAYOUT, SEARCH, SERVING
from torchfake.cli.options import (
    AsJson,
    Config,
    Html,
    Profiles,
    ShowTraceback,
    Target,
    Units,
    complete_gpu,
    parse_names,
    parse_numbers_of_gpus,
    parse_prices,
)
from torchfake.cli.output import errors_on_one_line, import_answers, print_record
from torchfake.cli.stdout import chatter_on_stderr
from torchfake.errors import InputsError

Users = Annotated[
    int,
    typer.Option(min=1, help="Requests under way at the same time.", rich_help_panel=SERVING),
]
Context = Annotated[
    int,
    typer.Option(
        min=2,
        help="Tokens of a sequence, prompt and answer together.",
        rich_help_panel=SERVING,
    ),
]
Prompt = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens of a prompt. [default: half of the context]",
        rich_help_panel=SERVING,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of GPUs; with --search, the most. [default: the size of the mesh, or 1]",
        rich_help_panel=GPU,
    ),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:NUMBER][,...]",
        help="Type of the GPUs; with --search, the types to try, and the most of each: "
        "h100-80gb:2,l40s-48gb:4 asks for two of these or four of those. "
        f"[default: {DEFAULT_PROFILE}]",
        autocompletion=complete_gpu,
        rich_help_panel=GPU,
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=SIZE,...",
        help="Mesh axes: tp splits tensors, ep distributes experts, pp layers, replicate keeps "
        "copies. [default: tp in a node of 8, pp between nodes]",
        rich_help_panel=LAYOUT,
    ),
]
WeightsFormat = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        metavar="FORMAT",
        help="Format of the weights: bf16, fp8, fp8-weights, fp8-block, int8, awq, gptq, mxfp4 or "
        "nvfp4; with --search, those to try. [default: the checkpoint's]",
        rich_help_panel=SERVING,
    ),
]
CacheDtype = Annotated[
    str | None,
    typer.Option(
        help="Dtype of the KV cache: fp8, int8, int4, bf16. [default: the model's]",
        rich_help_panel=SERVING,
    ),
]
PassTokens = Annotated[
    int,
    typer.Option(min=1, help="Most tokens of a pass (chunked prefill).", rich_help_panel=SERVING),
]
Utilization = Annotated[
    float,
    typer.Option(
        help="Share of the GPU's memory that the engine may use.", rich_help_panel=SERVING
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        help="engine: fused kernels in CUDA graphs, as in vLLM and TensorRT-LLM; or eager: "
        "transformers' modules as they are.",
        rich_help_panel=SERVING,
    ),
]
Searches = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try GPUs, numbers and layouts: the fewest GPUs, the most tokens per second, the "
        "lowest price.",
        rich_help_panel=SEARCH,
    ),
]
FirstToken = Annotated[
    float | None,
    typer.Option(
        "--ttft",
        metavar="SECONDS",
        help="Longest time to first token under the load.",
        rich_help_panel=SEARCH,
    ),
]
EachToken = Annotated[
    float | None,
    typer.Option(
        "--tpot",
        metavar="SECONDS",
        help="Longest time between two tokens of a user.",
        rich_help_panel=SEARCH,
    ),
]
Price = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU=PRICE",
        help="Price of an hour of a GPU, such as h100=2.5; repeatable.",
        rich_help_panel=SEARCH,
    ),
]


def serve_command(
    target: Target,
    users: Users = 1,
    context: Context = 8192,
    prompt: Prompt = None,
    gpus: Gpus = None,
    gpu: Gpu = None,
    mesh: Mesh = None,
    weights: WeightsFormat = None,
    cache_dtype: CacheDtype = None,
    pass_tokens: PassTokens = 8192,
    utilization: Utilization = 0.9,
    engine: EngineName = "engine",
    search: Searches = False,
    ttft: FirstToken = None,
    tpot: EachToken = None,
    price: Price = None,
    config: Config = None,
    profiles_file: Profiles = None,
    html: Html = None,
    units: Units = None,
    as_json: AsJson = False,
    show_traceback: ShowTraceback = False,
) -> None:
    """Check whether a language model can be served to a number of users, and how fast.

    Shows how many users fit, the time to the first token and for each further one, tokens per
    second, and the memory of each GPU. A run on fakes counts what a GPU holds and multiplies.
    The exit status is 1 if the users do not fit, or, with --search, nothing meets the limits.
    """
    import_answers(None if profiles_file else [text.partition(":")[0] for text in _split(gpu)])
    from torchfake.inspect.figures.report import report
    from torchfake.inspect.records.units import shown_in

    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        from torchfake.distributed import search_servers, serve  # import torch.distributed

        given: dict[str, Any] = {
            "users": users,
            "context": context,
            "prompt": prompt,
            "cache_dtype": cache_dtype,
            "pass_tokens": pass_tokens,
            "utilization": utilization,
            "engine": engine,
            "overrides": config or (),
        }
        kinds = parse_numbers_of_gpus(gpu, profiles_file)
        formats = parse_names("--weights", weights)
        if search:
            if mesh is not None:
                raise InputsError("--search chooses the layout: leave out --mesh")
            given |= {} if gpus is None else {"gpus": gpus}
            given |= {"gpu": kinds} if kinds else {}
            prices = parse_prices(price)
            options: dict[str, Any] = {
                "ttft": ttft,
                "tpot": tpot,
                "weights": formats or None,
                "prices": prices,
            }
            found: Any = search_servers(target, **given, **options)
        else:
            _check_alone(kinds, formats, {"--ttft": ttft, "--tpot": tpot, "--price": price})
            for kind, number in kinds.items():
                if number and gpus not in (None, number):
                    raise InputsError(f"--gpus is {gpus}, and --gpu has {number}: give one")
                given["gpu"], gpus = kind, gpus or number
            found = serve(
                target, **given, gpus=gpus, mesh=mesh, weights=formats[0] if formats else None
            )
        if html is not None:
            with shown_in(units):
                report(found, html)
    with errors_on_one_line(show_traceback):
        print_record(found, as_json, units=units)
    if not found.fits:
        raise typer.Exit(1)


def _split(texts: list[str] | None) -> list[str]:
    return [name for text in texts or () for name in text.split(",")]


def _check_alone(kinds: Any, formats: Any, of_search: dict[str, Any]) -> None:
    for name, number in (("--gpu", len(kinds or ())), ("--weights", len(formats))):
        if number > 1:
            raise InputsError(f"{name} names {number}: give one, or --search to try each")
    for name, value in of_search.items():
        if value:
            raise InputsError(f"{name} is for a search: give --search too")

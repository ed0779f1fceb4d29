"""The command ``torchfake serve``, and the options that only this command takes.

Input: arguments of the command line. Output: a plan of a server on stdout, or the best of a search;
exit code 1 if the users do not fit, or nothing meets the limits. Invariant: the answer is that of
``serve`` or ``search_servers``.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchfake._core.gpu_profiles import DEFAULT_PROFILE
from torchfake.cli import options
from torchfake.cli.help import GPU, LAYOUT, SEARCH, SERVING
from torchfake.cli.output import errors_on_one_line, import_answers, print_record, write_report
from torchfake.cli.stdout import chatter_on_stderr
from torchfake.errors import InputsError

Users = Annotated[
    int | None,
    SERVING(
        "Requests under way at the same time. [default: 1; with --search as many as each way "
        "serves, and tokens are compared]",
        min=1,
    ),
]
Context = Annotated[
    int,
    SERVING(
        "Length of a sequence, prompt and answer together, such as 8192 or 8k.",
        parser=options.tokens(2),
        metavar="TOKENS",
    ),
]
Prompt = Annotated[
    int | None,
    SERVING(
        "Length of a prompt. [default: half of the context]",
        parser=options.tokens(),
        metavar="TOKENS",
    ),
]
AnswerTokens = Annotated[
    int | None,
    SERVING(
        "Length of an answer. [default: the rest of the context]",
        parser=options.tokens(),
        metavar="TOKENS",
    ),
]
Gpus = Annotated[
    int | None,
    GPU("Number of GPUs; with --search, the most. [default: the size of the mesh, or 1]", min=1),
]
Gpu = Annotated[
    list[str] | None,
    GPU(
        "Type of the GPUs; with --search, the types to try, and the most of each: "
        "h100-80gb:2,l40s-48gb:4 asks for two of these or four of those. "
        f"[default: {DEFAULT_PROFILE}]",
        metavar="NAME[:NUMBER][,...]",
        autocompletion=options.complete_gpu,
    ),
]
Mesh = Annotated[
    str | None,
    LAYOUT(
        "Mesh axes: tp splits tensors, ep distributes experts, pp layers, replicate keeps "
        "copies. [default: tp in a node of 8, pp between nodes]",
        metavar="NAME=SIZE,...",
    ),
]
WeightsFormat = Annotated[
    list[str] | None,
    SERVING(
        "Format of the weights: bf16, fp8, fp8-weights, fp8-block, int8, awq, gptq, mxfp4 or "
        "nvfp4; with --search, those to try. [default: the checkpoint's]",
        "--weights",
        metavar="FORMAT",
    ),
]
CacheDtype = Annotated[
    list[str] | None,
    SERVING(
        "Dtype of the KV cache: fp8, int8, int4, bf16; with --search, those to try. "
        "[default: the model's]",
        metavar="DTYPE",
    ),
]
PassTokens = Annotated[
    int,
    SERVING("Most tokens of a pass (chunked prefill).", parser=options.tokens(), metavar="TOKENS"),
]
Utilization = Annotated[float, SERVING("Share of the GPU's memory that the engine may use.")]
EngineName = Annotated[
    str,
    SERVING(
        "engine: fused kernels in CUDA graphs, as in vLLM and TensorRT-LLM; or eager: "
        "transformers' modules as they are."
    ),
]
Searches = Annotated[
    bool,
    SEARCH(
        "Try GPUs, numbers and layouts: the fewest GPUs, the most tokens per second, the "
        "lowest price.",
        "--search",
    ),
]
FirstToken = Annotated[
    float | None,
    SEARCH("Longest time to first token under the load: 0.5.", "--ttft", metavar="SECONDS"),
]
EachToken = Annotated[
    float | None,
    SEARCH("Longest time between two tokens of a user: 0.05.", "--tpot", metavar="SECONDS"),
]
Price = Annotated[
    list[str] | None,
    SEARCH("Price of an hour of a GPU, such as h100=2.5; repeatable.", metavar="GPU=PRICE"),
]


_AS_GIVEN = (
    "users", "context", "prompt", "answer_tokens", "pass_tokens", "utilization", "engine",
)  # fmt: skip
"""Arguments of Python functions that are options of the same name."""


def serve_command(
    target: options.Target,
    users: Users = None,
    context: Context = 8192,
    prompt: Prompt = None,
    answer_tokens: AnswerTokens = None,
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
    config: options.Config = None,
    profiles_file: options.Profiles = None,
    html: options.Html = None,
    units: options.Units = None,
    as_json: options.AsJson = False,
    show_traceback: options.ShowTraceback = False,
) -> None:
    """Check whether a language model can be served to a number of users, and how fast.

    Shows how many users fit, the time to the first token and for each further one, tokens per
    second, and the memory of each GPU. A run on fakes counts what a GPU holds and multiplies.
    The exit status is 1 if the users do not fit, or, with --search, nothing meets the limits.
    """
    arguments = locals()
    import_answers(None if profiles_file else [text.partition(":")[0] for text in _split(gpu)])
    with errors_on_one_line(show_traceback), chatter_on_stderr(show_traceback):
        from torchfake.distributed import search_servers, serve  # import torch.distributed

        given: dict[str, Any] = {
            **{name: arguments[name] for name in _AS_GIVEN if arguments[name] is not None},
            "overrides": config or (),
        }
        kinds = options.parse_numbers_of_gpus(gpu, profiles_file)
        formats = options.parse_names("--weights", weights)
        caches = options.parse_names("--cache-dtype", cache_dtype)
        if search:
            if mesh is not None:
                raise InputsError("--search chooses the layout: leave out --mesh")
            given |= {} if gpus is None else {"gpus": gpus}
            given |= {"gpu": kinds} if kinds else {}
            limits: dict[str, Any] = {
                "ttft": ttft,
                "tpot": tpot,
                "prices": options.parse_prices(price),
            }
            stored: dict[str, Any] = {"weights": formats or None, "cache_dtype": caches or None}
            found: Any = search_servers(target, **given, **limits, **stored)
        else:
            _check_alone(kinds, formats, caches, {"--ttft": ttft, "--tpot": tpot, "--price": price})
            for kind, number in kinds.items():
                if number and gpus not in (None, number):
                    raise InputsError(f"--gpus is {gpus}, and --gpu has {number}: give one")
                given["gpu"], gpus = kind, gpus or number
            for name, each in (("weights", formats), ("cache_dtype", caches)):
                given |= {name: each[0]} if each else {}
            found = serve(target, **given, gpus=gpus, mesh=mesh)
        write_report(found, html, units)
    with errors_on_one_line(show_traceback):
        print_record(found, as_json, units=units)
    if not found.fits:
        raise typer.Exit(1)


def _split(texts: list[str] | None) -> list[str]:
    return [name for text in texts or () for name in text.split(",")]


def _check_alone(kinds: Any, formats: Any, caches: Any, of_search: dict[str, Any]) -> None:
    for name, named in (("--gpu", kinds), ("--weights", formats), ("--cache-dtype", caches)):
        if len(named or ()) > 1:
            raise InputsError(f"{name} names {len(named)}: give one, or --search to try each")
    for name, value in of_search.items():
        if value:
            raise InputsError(f"{name} is for a search: give --search too")

"""Commands that may fit where a step does not: another setting of the allocator, half the bits, a
smaller batch, fewer users, smaller weights, adapters, other or more GPUs.

Input: a question, and the fits that answer it. Output: the fits with commands. Invariant: a command
has all options of the user's that it can take; whether it fits is not known here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import usual_profiles
from torchfake._files.transformers_checkpoints import is_transformers_model
from torchfake.inspect.inputs.resizing import BATCH
from torchfake.inspect.memory import several_gpus
from torchfake.inspect.memory.fit import Fits
from torchfake.inspect.question import Question
from torchfake.inspect.serve import PAGED, Serve
from torchfake.inspect.steps.quantized import library_is_missing, scheme_as_described

PREFILL = 2048
"""Tokens of a pass over long prompts, as in the help of ``--serve``."""

EXPANDABLE = "expandable_segments:True"
"""The allocator's setting that reserves least, for a step that would fit without fragmentation."""

OF_WEIGHTS = ("parameters", "gradients", "optimizer state")
"""What smaller weights and adapters make smaller; no smaller batch and no checkpointing does."""

_GUESSED = 0.9
"""The share of a guessed batch that is tried, because the caching allocator rounds up."""


def with_commands(fits: Fits, target: Sequence[str], dtype: str | None, question: Question) -> Fits:
    """The fits, with commands that may fit, if the step fits on none of the GPUs; and with that
    which counts with the format of the config.

    Args:
        fits: the fits.
        target: the words that name the model, with changes of its config.
        dtype: the dtype that the user gave.
        question: the question.
    """
    fits = replace(fits, other_command=other_command(fits, target, dtype, question))
    if fits.fits:
        return fits
    gpus = _gpu_words(fits, question)

    def fitted(asked: Question, dtype: str | None, on: Sequence[str] = gpus) -> str:
        return shlex.join(["torchfake", "fit", *target, *words_of(asked, dtype), *on])

    other = filter(None, [fits.other_command])
    free = [*other, *(fitted(each, dtype) for each in _defragmented(fits, question))]
    ran = [*_of_searched_size(fits, question)]
    changed = [fitted(*each) for each in _changed(fits, dtype, question, ran)]
    if question.trains:
        one_gpu, several = (*_planned(fits, target, question), "", "")[:2]
        found = (*free, one_gpu, *changed, several)
        return replace(fits, next_commands=tuple(filter(None, found)))
    # which GPU is large enough?
    dtypes = [*_halved(fits, dtype, question, is_enough=False), dtype] if gpus else []
    larger = [fitted(question, each, ()) for each in dtypes]
    found = (*free, *changed, *larger)
    return replace(fits, next_commands=found, ran=tuple(fitted(each, dtype) for each in ran))


def _gpu_words(fits: Fits, question: Question) -> list[str]:
    named = ",".join(fit.gpu for fit in fits)
    are_few = len(fits) < len(usual_profiles())  # else the usual ones are named by no option
    return ["--gpu", named, *question.profiles_options] if question.gpus and are_few else []


_SERVED = (
    "fp8", "fbgemm_fp8", "gptq", "awq", "mxfp4", "modelopt", "modelopt_fp4", "compressed-tensors",
)  # fmt: skip
"""Formats of configs with which ``torchfake serve`` counts."""


def other_command(fits: Fits, target: Sequence[str], dtype: str | None, question: Question) -> str:
    """The command that counts with the format of the model's config, where that was not counted:
    the same step if it runs on such weights, else a server, else the size of the weights alone; ""
    if there is none.
    """
    name, module = fits.estimate.counted.other_format, fits.estimate.subject.module
    scheme = scheme_as_described(module) if name else None
    runs = scheme is not None and not library_is_missing(scheme)
    generates = getattr(module, "can_generate", bool)
    is_served = name in _SERVED and not question.trains and generates()
    if scheme is not None and (question.lora or not question.trains) and (runs or not is_served):
        asked = replace(question, weights=scheme, **(_a_size(question) if runs else {}))
        words = [*words_of(asked, dtype), *_gpu_words(fits, question)]
        return shlex.join(["torchfake", "fit", *target, *words])
    return _server(fits, target, question) if is_served else ""


def _server(fits: Fits, target: Sequence[str], question: Question) -> str:
    """The command for a server on the largest of the user's GPUs."""
    words, asked = [], question.serve
    if asked is not None:
        words = ["--users", str(asked.users), "--context", str(asked.context)]
    if question.gpus:
        largest = max(fits, key=lambda fit: fit.total_bytes)
        words += ["--gpu", largest.gpu, *question.profiles_options]
    return shlex.join(["torchfake", "serve", *target, *words])


def _changed(
    fits: Fits, dtype: str | None, question: Question, ran: Sequence[Question]
) -> Iterator[tuple[Question, str | None]]:
    """The step in half the bits, with a smaller size, then with less memory for weights."""
    in_half = [*_halved(fits, dtype, question)]
    yield from ((question, each) for each in in_half)
    yield from ((each, dtype) for each in (*ran, *_of_smaller_size(fits, question, ran)))
    # half the bits may not be enough
    dtypes = [*_halved(fits, dtype, question, is_enough=False)] if in_half else [dtype]
    yield from ((each, name) for name in dtypes for each in _smaller(fits, question))
    serve = question.serve
    if serve is not None and serve.cache == PAGED and serve.cache_dtype is None:
        together = replace(serve, cache_dtype="fp8", prefill=serve.prefill or PREFILL)
        asked = replace(question, serve=together)
        yield from ((asked, each) for each in in_half)
        yield from ((each, name) for name in dtypes for each in _smaller(fits, asked))


def _defragmented(fits: Fits, question: Question) -> Iterator[Question]:
    """The question with another setting of the allocator, which costs nothing, where what is
    allocated has room and what is reserved has none.
    """
    if question.allocator is None and any(fit.peak_bytes <= fit.usable_bytes for fit in fits):
        yield replace(question, allocator=EXPANDABLE)


def _halved(
    fits: Fits, dtype: str | None, question: Question, *, is_enough: bool | None = None
) -> Iterator[str]:
    """The dtype in which inference in float32 takes half the memory.

    Args:
        fits: the fits.
        dtype: the dtype that the user gave.
        question: the question.
        is_enough: only if that is probably, or probably not, enough; None: in any case.
    """
    if question.trains or question.weights is not None or dtype is not None:
        return
    if any(p.dtype == torch.float32 for p in fits.estimate.subject.module.parameters()):
        fits_halved = any(fit.peak_reserved_bytes <= 2 * fit.usable_bytes for fit in fits)
        if is_enough in (None, fits_halved):
            yield "bf16"


def _of_searched_size(fits: Fits, question: Question) -> Iterator[Question]:
    """The question with the largest batch, the most users or the longest context that fits, which
    the search has run.
    """
    serve = question.serve
    if serve is not None:
        users = max((fit.users or 0 for fit in fits), default=0)
        if 0 < users < serve.users:
            yield replace(question, serve=replace(serve, users=users))
        context = max((fit.context or 0 for fit in fits), default=0)
        if 2 <= context < serve.context:
            prompt = None if serve.prompt is None else min(serve.prompt, context - 1)
            yield replace(question, serve=replace(serve, context=context, prompt=prompt))
    elif not question.trains and 0 < (largest := _searched(fits)) < (question.batch or 1):
        yield replace(question, batch=largest)


def _searched(fits: Fits) -> int:
    """The largest batch that fits, as the search has found it, or 0."""
    return max((fit.largest or 0 for fit in fits if fit.vary == BATCH), default=0)


def _of_smaller_size(
    fits: Fits, question: Question, searched: Sequence[Question]
) -> Iterator[Question]:
    """The question with sizes that may fit: prompts read in pieces, another cache; a batch that is
    guessed; in training the largest batch, with as many micro-batches as keep the global batch.
    """
    if question.serve is not None:
        yield from (replace(question, serve=serve) for serve in _served(question.serve))
        return
    was_searched = any(fit.vary == BATCH for fit in fits)
    largest = _searched(fits) if was_searched else _guessed(fits, question.batch or 1)
    if searched or question.batch is None or not 0 < largest < question.batch:
        return
    if not question.trains:
        yield replace(question, batch=largest)
        return
    size = next(n for n in range(largest, 0, -1) if question.batch % n == 0)
    number = question.accumulate * question.batch // size
    yield replace(question, batch=size, accumulate=number)


def _guessed(fits: Fits, batch: int) -> int:
    """A batch that may fit where none was searched: what is not held for weights grows with it."""
    held = sum(fits.shown.peak.by_category.get(name, 0) for name in OF_WEIGHTS)
    shares = [(fit.usable_bytes - held) / max(fit.peak_reserved_bytes - held, 1) for fit in fits]
    return int(_GUESSED * batch * max(shares))


def _served(serve: Serve) -> Iterator[Serve]:
    """The same workload with prompts that are read in pieces, and with another cache."""
    if serve.prefill is None and serve.prompt_length > PREFILL:
        yield replace(serve, prefill=PREFILL)
    if serve.cache == PAGED and serve.cache_dtype is None:
        yield replace(serve, cache_dtype="fp8")


def _smaller(fits: Fits, question: Question) -> Iterator[Question]:
    """The same step with less memory for weights, if these are the reason."""
    if question.weights is not None:
        return
    if not question.trains:
        # a step is run, as in the question: without a size only the weights would be compared
        yield replace(question, weights="int4", **_a_size(question))
        return
    of_weights = sum(fits.shown.peak.by_category.get(name, 0) for name in OF_WEIGHTS)
    if fits.shown.peak_bytes - of_weights > max(fit.usable_bytes for fit in fits):
        return
    if question.lora is None and _adapts(fits.estimate.subject.module):
        yield replace(question, train=True, lora=16, weights="nf4")


def _a_size(question: Question) -> dict[str, Any]:
    """The batch of a question that has no size: with it, a command runs a step."""
    asks = (question.batch, question.seq, question.serve, question.decode)
    is_asked = any(each is not None for each in asks) or question.inputs
    return {} if is_asked else {"batch": 1}


def _adapts(module: nn.Module) -> bool:
    """Whether adapters of linear layers make a difference: most parameters are in such layers."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    in_linear = sum(p.numel() for layer in layers for p in layer.parameters())
    return is_transformers_model(module) and 2 * in_linear > sum(
        p.numel() for p in module.parameters()
    )


def words_of(question: Question, dtype: str | None) -> list[str]:
    """The options of ``fit`` that ask a question, without those of GPUs."""
    sizes = {
        "--batch": question.batch,
        "--seq": question.seq,
        "--lengths": ",".join(map(str, question.lengths or ())) or None,
        "--serve": None if question.serve is None else question.serve.text,
        "--decode": None if question.decode is None else ",".join(map(str, question.decode)),
        "--optimizer": question.optimizer,
        "--autocast": question.autocast,
        "--accumulate": question.accumulate if question.accumulate > 1 else None,
        "--answer": question.answer,
        "--allocator": question.allocator,
        "--vary": question.vary if question.vary != "batch" else None,
    }
    weights = {"--dtype": dtype, **_of_weights(question)}
    words = [word for text in question.inputs for word in ("--input", text)] + _pairs(sizes)
    words += ["--keep-gradients"] if question.keep_gradients else []
    words += ["--train"] if question.train else []
    return words + _pairs(weights)


def _of_weights(question: Question) -> dict[str, Any]:
    """The options that replace weights or train others in their place."""
    return {
        "--lora": question.lora,
        "--lora-target": ",".join(question.lora_target) or None,
        "--weights": question.weights,
    }


def _pairs(options: dict[str, Any]) -> list[str]:
    """The words of the options that have a value."""
    given = ((name, value) for name, value in options.items() if value is not None)
    return [str(word) for pair in given for word in pair]


def _planned(fits: Fits, target: Sequence[str], question: Question) -> Iterator[str]:
    """Plans: on one GPU with activation checkpointing, and on several."""
    layout = fits.layout
    if layout is None:
        return
    options = [*target[1:], *question.profiles_options]
    given = {"--answer": question.answer, "--allocator": question.allocator}
    options += _pairs(given | _of_weights(question))
    if question.accumulate > 1:
        options += ["--accumulate", str(question.accumulate)]
    one = layout._replace(num_gpus=1, batch=question.batch or layout.batch, checkpoint="full")
    several = layout._replace(batch=(layout.batch or 1) * question.accumulate)
    one = one._replace(batch=(one.batch or 1) * question.accumulate)
    if layout.batch is None:
        one, several = one._replace(batch=None), several._replace(batch=None)
    for each in (one, several):
        yield several_gpus.command(each, target[0], options, question.inputs)

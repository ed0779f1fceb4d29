"""Runs the passes of serving that can hold the most memory.

Input: a fake copy of a model, a step with a :class:`Serve`, a storage tracker. Output: the tracker
has recorded the passes; a record of the cache. Invariant: each pass holds the cache of all users.
"""

from __future__ import annotations

import torch

from torchfake._torch import autograd
from torchfake.errors import InputsError
from torchfake.inspect.contents.positions import positions_of, too_long
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.serve import PAGED, Serve
from torchfake.inspect.serving import blocks
from torchfake.inspect.serving.cache_record import ServedCache, record_of
from torchfake.inspect.serving.caches import cache_for, config_of
from torchfake.inspect.steps.execution import set_training
from torchfake.inspect.steps.generation import GreedyLoop
from torchfake.inspect.steps.module_tensors import register_all
from torchfake.inspect.steps.step import Step
from torchfake.inspect.steps.training import autocast_of
from torchfake.inspect.storages.bounds_check import BoundsChecks
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.observe import observing


def run_serving(step: Step, fake_copy: FakeCopy, tracker: StorageTracker) -> ServedCache:
    """Run the passes of a server, recorded by the tracker, and return the record of the cache.

    Raises:
        InputsError: if the model does not support the workload.
    """
    serve, module = step.serve, fake_copy.module
    assert serve is not None
    config_of(module)
    if "input_ids" not in GreedyLoop.names_of(module):
        raise InputsError(
            f"{type(module).__name__} takes no input_ids, so it cannot be served: leave out serve= "
            "for a forward pass, of batch= and seq="
        )
    register_all(module, tracker)
    set_training(module, step.mode)
    with autograd.no_grad(), autocast_of(fake_copy, step):
        if not step.pages:  # otherwise an earlier run has checked it
            _check_positions(serve, fake_copy, tracker)
        if serve.cache == PAGED:
            return _serve_blocks(step, fake_copy, tracker)
        return _serve_cache(serve, fake_copy, tracker)


def _check_positions(serve: Serve, fake_copy: FakeCopy, tracker: StorageTracker) -> None:
    """Run a model whose config has fewer positions than the context on all tokens at once, which
    fails if it has learned its positions: the passes of serving need not come to the last one.

    Raises:
        InputsError: if the model does not run on so many tokens.
    """
    module, prompt = fake_copy.module, serve.prompt_length
    positions = positions_of(module)
    if positions is None or serve.context <= positions.number:
        return
    loop = GreedyLoop(fake_copy, tracker, 1, prompt)
    try:
        with observing(BoundsChecks()):
            loop.run(serve.context - loop.has_decoder * prompt)
    except Exception as error:
        remedy = "give a context of at most {}"
        if refusal := too_long(error, module, serve.context, remedy):
            raise InputsError(refusal) from error


def _serve_cache(serve: Serve, fake_copy: FakeCopy, tracker: StorageTracker) -> ServedCache:
    """Serve with a cache of transformers: all prompts, in one pass or in pieces; then answers."""
    prompt, module = serve.prompt_length, fake_copy.module
    cache = cache_for(module, serve)
    loop = GreedyLoop(fake_copy, tracker, serve.users, prompt, cache=cache)
    steps = serve.context - prompt
    if loop.has_decoder:
        loop.run(1, "prefill")
    else:
        _read_prompt(loop, prompt, serve.prefill or prompt)
    loop.run_last(steps)
    return record_of(loop.cache, str(fake_copy.device), serve.users, serve.context)


def _read_prompt(loop: GreedyLoop, prompt: int, piece: int) -> None:
    """Read a prompt in pieces; the first piece, the last full piece and the rest are tracked."""
    piece = min(piece, prompt)
    whole, rest = divmod(prompt, piece)
    loop.run(piece, "prefill")
    if whole > 1:
        loop.skip_pieces(whole - 2, piece)
        loop.run(piece, "prefill")
    if rest:
        loop.run(rest, "prefill")


def _serve_blocks(step: Step, fake_copy: FakeCopy, tracker: StorageTracker) -> ServedCache:
    """Serve with a paged cache: a pass over prompts, and a pass over one token of each user."""
    serve, device = step.serve, fake_copy.device
    assert serve is not None
    found = step.pages or blocks.pages_of(fake_copy, tracker, serve, str(device))
    served = blocks.served_blocks(found, serve)
    pool = [torch.empty(n.num_bytes, dtype=torch.uint8, device=device) for n in served.layers]
    tracker.register([("", tensor) for tensor in pool], "kv cache")
    rows, length = blocks.rows_of_pass(serve)
    for phase, batch, tokens in (("prefill", rows, length), ("decode", serve.users, 1)):
        cache = blocks.cache_in_blocks(fake_copy.module)
        GreedyLoop(fake_copy, tracker, batch, tokens, cache=cache).run(tokens, phase)
    return served

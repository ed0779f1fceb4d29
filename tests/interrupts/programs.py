"""Programs that are interrupted: each kind of mode entered, used and left."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import torchfake
import torchfake.fx
from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module
from torchfake.meta_init import materialize, meta_init

Program = Callable[[], Any]


def build() -> nn.Module:
    return nn.Linear(3, 4)


def plain() -> None:
    with fake_mode():
        torch.ones(2)


def with_cuda() -> None:
    with fake_mode(fake_cuda=True):
        torch.ones(2, device="cuda")


def deferred() -> None:
    with deferred_mode():
        build()


def deferred_with_cuda() -> None:
    with deferred_mode(fake_cuda=2):
        torch.ones(2, device="cuda:1")


def deferred_function() -> None:
    deferred_init(build)


def meta() -> None:
    with meta_init():
        build()


def nested() -> None:
    with fake_mode(), deferred_mode(fake_cuda=True), fake_mode(fake_cuda=2):
        torch.ones(2)


def same_object() -> None:
    mode = fake_mode(fake_cuda=True)
    with mode, mode:
        torch.ones(2)


def decorated() -> None:
    fake_mode(fake_cuda=True)(build)()


def with_exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(fake_mode())
        stack.enter_context(deferred_mode(fake_cuda=True))
        torch.ones(2)


@contextlib.contextmanager
def in_a_mode() -> Iterator[None]:
    with fake_mode():
        yield


def in_a_generator() -> None:
    with in_a_mode():
        torch.ones(2)


def suspended() -> None:
    def items() -> Iterator[torch.Tensor]:
        with fake_mode():
            yield torch.ones(2)

    running = items()
    next(running)
    running.close()


async def _in_a_coroutine() -> None:
    with fake_mode():
        await asyncio.sleep(0)
        torch.ones(2)


def in_a_coroutine() -> None:
    coroutine = _in_a_coroutine()
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


def left_by_an_error() -> None:
    with contextlib.suppress(ZeroDivisionError), fake_mode(fake_cuda=True):
        _ = 1 / 0


def autocast() -> None:
    with fake_mode():
        layer, x = build(), torch.ones(2, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x)


def known_values() -> None:
    with fake_mode():
        (torch.arange(3) + 1).tolist()


def after_the_mode() -> None:
    with deferred_mode():
        weight = torch.zeros(3)
    weight[0] = 3
    torch.where(weight > 0, 1.0, weight)


def materialized() -> None:
    materialize_module(deferred_init(build))


def materialized_from_meta() -> None:
    with meta_init():
        layer = build()
    materialize(layer)


def rejection_sampler() -> None:
    deferred_init(lambda: nn.init.trunc_normal_(torch.empty(5, 5)))


def initializer() -> None:
    deferred_init(lambda: nn.init.orthogonal_(torch.empty(4, 4)))


def fake_copy() -> None:
    torchfake.meta_like(torchfake.fake_like(nn.Linear(2, 3)).weight)


def traced_symbolically() -> None:
    with fake_mode(fake_cuda=True):
        layer, x = build().cuda(), torch.ones(2, 3, device="cuda")
    torchfake.fx.symbolic_trace(layer, x)


def traced_by_make_fx() -> None:
    with fake_mode():
        layer, x = build(), torch.ones(2, 3)
    torchfake.fx.make_fx(layer, x)


def exported() -> None:
    with fake_mode(fake_cuda=True):
        layer, x = build().cuda(), torch.ones(2, 3, device="cuda")
    torchfake.fx.export(layer, (x,))


def meta_patcher() -> None:
    patcher = torchfake.fx.MetaAwareMethodsPatcher()
    try:
        with patcher:
            layer = nn.Linear(2, 3)
        layer(torch.ones(1, 2))
    finally:
        patcher.unpatch()


def estimated() -> None:
    torchfake.estimate(build(), torch.ones(2, 3), optimizer="sgd", autocast=torch.bfloat16)


def checked() -> None:
    torchfake.check(build(), torch.ones(2, 3))


def summarized() -> None:
    torchfake.summary(build(), torch.ones(2, 3))


def planned() -> None:
    from torch.distributed.fsdp import fully_shard

    torchfake.plan(
        build,
        mesh_shape=2,
        parallelize=lambda module, mesh: fully_shard(module, mesh=mesh),
        inputs=torch.ones(2, 3),
    )


def saved() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torchfake.save_materialized(deferred_init(build), folder)


def _by_name(*programs: Program) -> dict[str, Program]:
    return {program.__name__: program for program in programs}


MODES = _by_name(
    plain, with_cuda, deferred, deferred_with_cuda, deferred_function, meta, nested, same_object,
    decorated, with_exit_stack, in_a_generator, suspended, in_a_coroutine, left_by_an_error,
)  # fmt: skip
"""Modes, entered and left in all the ways there are."""

USES = _by_name(
    autocast, known_values, after_the_mode, materialized, materialized_from_meta,
    rejection_sampler, initializer, fake_copy, traced_symbolically, traced_by_make_fx, exported,
    meta_patcher, estimated, checked, summarized, planned, saved,
)  # fmt: skip
"""What enters contexts of its own."""

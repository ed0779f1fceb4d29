"""Steps as users write them: builders give a function, and the tensors that exist before it."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

Built = tuple[Callable[..., Any], tuple[Any, ...], list[torch.Tensor]]


def net(*sizes: int) -> nn.Sequential:
    pairs = itertools.pairwise(sizes)
    layers = [m for a, b in pairs for m in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def plain(set_to_none: bool = True) -> Built:
    model = net(32, 128, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 32)

    def step() -> None:
        optimizer.zero_grad(set_to_none)
        model(x).square().mean().backward()
        optimizer.step()

    return step, (), [*model.parameters(), x]


def accumulation_and_clipping() -> Built:
    model = net(32, 128, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    x = torch.randn(16, 32)

    def step() -> None:
        for micro in x.chunk(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(micro).float().square().mean() / 4
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    return step, (), [*model.parameters(), x]


def of_arguments() -> Built:
    model = net(32, 64, 8)
    optimizer = torch.optim.Adam(model.parameters())
    batch = {"x": torch.randn(8, 32), "y": torch.randint(0, 8, (8,))}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> torch.Tensor:
        logits = model(batch["x"])
        loss = F.cross_entropy(logits, batch["y"])
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, (model, optimizer, batch), [*model.parameters(), *batch.values()]


def gan() -> Built:
    generator, critic = net(16, 64, 32), net(32, 64, 1)
    ours = torch.optim.Adam(generator.parameters())
    theirs = torch.optim.Adam(critic.parameters())
    real = torch.randn(8, 32)

    def step() -> None:
        made = generator(torch.randn(8, 16))
        loss = critic(made.detach()).mean() - critic(real).mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        ours.zero_grad()
        (-critic(made).mean()).backward()
        ours.step()

    return step, (), [*generator.parameters(), *critic.parameters(), real]


def preference() -> Built:
    """With a reference model that is not trained."""
    model = net(32, 64, 16)
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    chosen, rejected = torch.randn(8, 32), torch.randn(8, 32)

    def log_ratio(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            expected = reference(x).log_softmax(-1)
        return (model(x).log_softmax(-1) - expected).sum(-1)

    def step() -> None:
        loss = -F.logsigmoid(log_ratio(chosen) - log_ratio(rejected)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    held = [*model.parameters(), *reference.parameters(), chosen, rejected]
    return step, (), held


def optimizer_in_backward() -> Built:
    model = net(32, 64, 8)
    x = torch.randn(8, 32)
    optimizers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step() -> None:
        model(x).square().mean().backward()

    return step, (), [*model.parameters(), x]


def gradient_hooks() -> Built:
    model = net(32, 64, 8)
    x = torch.randn(8, 32)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    return step, (), [*model.parameters(), x]


def scaled_gradients() -> Built:
    model = net(32, 128, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(16, 32)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step, (), [*model.parameters(), x]


def distillation() -> Built:
    student, teacher = net(32, 64, 16), net(32, 256, 256, 16).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters())
    x = torch.randn(16, 32)

    def step() -> None:
        with torch.no_grad():
            expected = teacher(x).softmax(-1)
        F.kl_div(student(x).log_softmax(-1), expected, reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, (), [*student.parameters(), *teacher.parameters(), x]


def lbfgs() -> Built:
    model = net(8, 16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure), (), [*model.parameters(), x]


def moving_average() -> Built:
    model = net(32, 64, 8)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 32)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)

    held = [*model.parameters(), *average.parameters(), *average.buffers(), x]
    return step, (), held


def chunked_loss() -> Built:
    body, head = net(32, 64, 16), nn.Linear(16, 1000)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()])
    x, y = torch.randn(64, 32), torch.randint(0, 1000, (64,))

    def step() -> None:
        hidden = body(x)
        leaf = hidden.detach().requires_grad_()
        for part, target in zip(leaf.chunk(8), y.chunk(8), strict=True):
            (F.cross_entropy(head(part), target) / 8).backward()
        hidden.backward(leaf.grad)
        optimizer.step()
        optimizer.zero_grad()

    return step, (), [*body.parameters(), *head.parameters(), x, y]


class Trainer:
    """A step that is a method, and keeps what it has seen."""

    def __init__(self) -> None:
        self.model = net(32, 64, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batches = [torch.randn(8, 32), torch.randn(8, 32)]
        self.last: torch.Tensor | None = None
        self.num_steps = 0

    def step(self) -> None:
        x = self.batches[self.num_steps % 2]
        self.last = self.model(x)
        self.last.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1


def method() -> Built:
    trainer = Trainer()
    return trainer.step, (), [*trainer.model.parameters(), *trainer.batches]


def partly_applied() -> Built:
    trainer = Trainer()

    def step(trainer: Trainer, *, times: int) -> None:
        for _ in range(times):
            trainer.step()

    held = [*trainer.model.parameters(), *trainer.batches]
    return functools.partial(step, trainer, times=2), (), held


def saved_on_cpu() -> Built:
    model = net(32, 64, 8)
    x = torch.randn(8, 32)

    def step() -> None:
        model.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            loss = model(x).square().mean()
        loss.backward()

    return step, (), [*model.parameters(), x]


def inference() -> Built:
    model = net(32, 256, 256, 8).eval()
    x = torch.randn(16, 32)

    @torch.no_grad()
    def step() -> torch.Tensor:
        return torch.cat([model(part) for part in x.split(4)])

    return step, (), [*model.parameters(), x]


PROGRAMS: dict[str, Callable[[], Built]] = {
    "plain": plain,
    "gradients kept": functools.partial(plain, False),
    "accumulation": accumulation_and_clipping,
    "arguments": of_arguments,
    "two models": gan,
    "reference model": preference,
    "optimizer in backward": optimizer_in_backward,
    "gradient hooks": gradient_hooks,
    "scaled gradients": scaled_gradients,
    "distillation": distillation,
    "moving average": moving_average,
    "chunked loss": chunked_loss,
    "method": method,
    "partial": partly_applied,
    "saved on cpu": saved_on_cpu,
    "inference": inference,
}

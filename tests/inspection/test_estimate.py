"""Memory of a step: byte for byte what a real run on the CPU holds, counted by a dispatch mode."""

from __future__ import annotations

import contextlib
import copy
import gc
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from counting import Counting, counted_forward, counted_training
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import MODELS, made
from torch import nn

from torchfake import deferred_init, fake_like, fake_mode, profiles
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect import Estimate, estimate

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": partial(torch.optim.Adam, amsgrad=True),
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adafactor": torch.optim.Adafactor,
    "foreach": partial(torch.optim.AdamW, foreach=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum", None])
def test_training_is_byte_exact(name: str, optimizer: str | None) -> None:
    model, inputs = made(name)
    make = None if optimizer is None else OPTIMIZERS[optimizer]
    found = estimate(model, inputs, optimizer=make, mode="training")
    first, second = counted_training(model, inputs, make)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_inference_are_byte_exact(name: str) -> None:
    model, inputs = made(name)
    assert estimate(model, inputs, mode="forward").peak_bytes == counted_forward(
        model, inputs, grad=True
    )
    found = estimate(model, inputs)
    assert found.mode == "inference"
    assert found.peak_bytes == counted_forward(model.eval(), inputs, grad=False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_byte_exact(optimizer: str) -> None:
    model, inputs = made("vit")
    found = estimate(model, inputs, optimizer=OPTIMIZERS[optimizer])
    first, second = counted_training(model, inputs, OPTIMIZERS[optimizer])
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("name", ["gpt2", "llama", "convnet"])
def test_autocast_is_byte_exact(name: str) -> None:
    model, inputs = made(name)
    found = estimate(model, inputs, optimizer="adamw", autocast="bf16")
    first, second = counted_training(model, inputs, torch.optim.AdamW, autocast=torch.bfloat16)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_is_byte_exact_and_saves_activations(use_reentrant: bool) -> None:
    model, inputs = made("llama")
    plain = estimate(model, inputs, optimizer="sgd")
    model.config.use_cache = False
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    found = estimate(model, inputs, optimizer="sgd")
    first, second = counted_training(model, inputs, torch.optim.SGD)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)

    def most(of: Estimate) -> int:
        timeline = of.timeline
        return int(timeline.num_bytes[:, timeline.categories.index("activations")].max())

    assert most(found) < most(plain)


def test_frozen_and_tied_parameters() -> None:
    model, inputs = made("gpt2")  # its head is tied to its embedding
    for block in model.transformer.h[:2]:
        block.requires_grad_(False)
    found = estimate(model, inputs, optimizer="adamw")
    assert (found.first_step_peak_bytes, found.peak_bytes) == counted_training(
        model, inputs, torch.optim.AdamW
    )


LAYERS = {
    "linear": lambda: nn.Linear(8, 8),
    "norm": lambda: nn.LayerNorm(8),
    "batchnorm": lambda: nn.BatchNorm1d(8),
    "relu": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "softmax": lambda: nn.Softmax(-1),
    "dropout": lambda: nn.Dropout(0.5),
    "glu": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
    "bilinear": lambda: Twice(),
    "residual": lambda: Residual(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))),
}


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    """Uses one layer twice, so that its gradient is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.inner(x.tanh())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=7),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    batch=st.integers(2, 5),
)
def test_generated_models_are_byte_exact(layers: list[str], optimizer: str, batch: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), *(LAYERS[name]() for name in layers))
    inputs = {"input": torch.randn(batch, 8)}
    found = estimate(model, inputs, optimizer=OPTIMIZERS[optimizer])
    assert (found.first_step_peak_bytes, found.peak_bytes) == counted_training(
        model, inputs, OPTIMIZERS[optimizer]
    )


def test_generation_is_byte_exact() -> None:
    """Against a loop over all tokens on real tensors."""
    model, _ = made("llama")
    model.eval()
    prompt, new = 7, 9
    counting = Counting([*model.parameters(), *model.buffers()])
    with counting, torch.no_grad():
        token = torch.zeros(2, prompt, dtype=torch.long)
        cache = None
        for _ in range(new):
            output = model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            del output
            token = torch.zeros(2, 1, dtype=torch.long)
    found = estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(prompt, new))
    assert found.mode == "generation"
    assert found.peak_bytes == counting.peak_bytes
    assert found.peak.by_category["kv cache"] > 0


@pytest.mark.parametrize("new", [1, 2, 9])
def test_generation_with_an_encoder_is_byte_exact(new: int) -> None:
    model, _ = made("t5")
    model.eval()
    prompt = 7
    counting = Counting([*model.parameters(), *model.buffers()])
    with counting, torch.no_grad():
        token = torch.zeros(2, 1, dtype=torch.long)
        given = {"input_ids": torch.zeros(2, prompt, dtype=torch.long)}
        cache = encoded = None
        for _ in range(new):
            output = model(**given, decoder_input_ids=token, past_key_values=cache, use_cache=True)
            cache, encoded = output.past_key_values, output.encoder_last_hidden_state
            given = {"encoder_outputs": (encoded,)}
            del output
            token = torch.zeros(2, 1, dtype=torch.long)
    found = estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(prompt, new))
    assert found.peak_bytes == counting.peak_bytes


def test_the_books_balance() -> None:
    model, inputs = made("gpt2")
    found = estimate(model, inputs, optimizer="adamw")
    peak = found.peak
    assert sum(peak.by_category.values()) == found.peak_bytes == found.timeline.total.max()
    assert sum(n for own in found.by_module.values() for n in own.values()) == found.peak_bytes
    sizes = sum(p.nbytes for p in model.parameters())
    assert peak.by_category["parameters"] == sizes
    state = peak.by_category["optimizer state"]
    assert state == 2 * sizes + 4 * len(list(model.parameters()))  # and a step count each
    owners = {name for name, own in found.by_module.items() if "parameters" in own}
    assert owners == {n for n, m in model.named_modules() if m._parameters} - {"lm_head"}


def test_categories_of_a_plain_step() -> None:
    layer, x = nn.Linear(100, 50, bias=False), torch.empty(10, 100)
    found = estimate(layer, x, optimizer="sgd", loss=lambda out: out.sum())
    timeline = found.timeline
    most = dict(zip(timeline.categories, timeline.num_bytes.max(axis=0).tolist(), strict=True))
    weight = 100 * 50 * 4
    assert most["parameters"] == most["gradients"] == weight
    assert most["inputs"] == 10 * 100 * 4
    assert most["activations"] == 10 * 50 * 4 + 4  # the output, and the loss


def test_backward_and_recomputation_are_told_by_module() -> None:
    model, inputs = made("llama")
    found = estimate(model, inputs, mode="training")
    lives = found.lives
    backward = {lives.module[i] for i in np.flatnonzero(lives.phase == 2)}
    assert {"model.layers.0.mlp.act_fn", "model.layers.2.self_attn.q_proj"} <= backward


def test_the_module_is_left_alone() -> None:
    model, inputs = made("convnet")
    model.eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = copy.deepcopy(model.state_dict())
    versions = [t._version for t in (*model.parameters(), *model.buffers())]
    estimate(model, inputs, optimizer="adamw")
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert versions == [t._version for t in (*model.parameters(), *model.buffers())]
    assert not model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.head.bias.grad is None


@pytest.mark.parametrize("kind", ["real", "fake", "deferred"])
def test_every_kind_of_module_gives_the_same(kind: str) -> None:
    from torchfake import is_deferred

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    if kind == "fake":
        with fake_mode():
            model = build()
    else:
        model = build() if kind == "real" else deferred_init(build)
    found = estimate(model, torch.randn(4, 8), optimizer="adamw")
    assert found.peak_bytes == estimate(build(), torch.randn(4, 8), optimizer="adamw").peak_bytes
    if kind == "deferred":
        assert is_deferred(model)
        assert model[1].num_batches_tracked.item() == 0


def test_on_a_gpu_that_is_not_there() -> None:
    model, inputs = made("gpt2")
    found = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    assert found.device == "cuda:0"
    assert found.gpu == profiles()["h100-80gb"]
    assert found.round_to == 512
    assert found.workspace_bytes == 2 * 32 * 2**20
    assert found.elsewhere["cpu"] > 0  # the step counts of the optimizer
    assert (found.sizes % 512 == 0).all()
    exact = estimate(model, inputs, optimizer="adamw", device="cuda", round_to=1, workspace_bytes=0)
    assert exact.workspace_bytes == 0
    assert exact.peak_bytes < found.peak_bytes - found.workspace_bytes
    assert estimate(model, inputs, gpu="a100-80gb").workspace_bytes == 8_519_680


def test_cuda_optimizers_run_on_all_tensors_at_once() -> None:
    model, inputs = made("vit")
    found = estimate(model, inputs, optimizer="adamw", device="cuda")
    assert any(op.startswith("aten._foreach_") for op in found.lives.op)
    same = estimate(model, inputs, optimizer=torch.optim.AdamW(model.parameters()), device="cuda")
    assert same.peak_bytes == found.peak_bytes


def test_an_optimizer_of_the_module_itself() -> None:
    model, inputs = made("vit")
    groups = [
        {"params": list(model.vit.parameters()), "lr": 1e-3},
        {"params": list(model.classifier.parameters()), "amsgrad": True},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-4)
    found = estimate(model, inputs, optimizer=optimizer)
    assert not optimizer.state
    params = {id(p): i for i, p in enumerate(model.parameters())}

    def same(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        mine = [
            {**group, "params": [parameters[params[id(p)]] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        return torch.optim.Adam(mine)

    assert (found.first_step_peak_bytes, found.peak_bytes) == counted_training(model, inputs, same)


def test_what_is_wrong_is_said() -> None:
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with pytest.raises(InputsError, match=r"torch.optim has no 'adamz'; there are: .*adamw"):
        estimate(layer, x, optimizer="adamz")
    with pytest.raises(InputsError, match="mode='train' is not training"):
        estimate(layer, x, mode="train")
    with pytest.raises(InputsError, match="an optimizer is for training"):
        estimate(layer, x, mode="inference", optimizer="sgd")
    with pytest.raises(InputsError, match="tensor of one number, not shape"):
        estimate(layer, x, loss=lambda out: out)
    with pytest.raises(InputsError, match="no parameter requires a gradient"):
        estimate(nn.Linear(3, 4).requires_grad_(False), x, optimizer="sgd")
    with pytest.raises(InputsError, match="no tensor of the output has a gradient"):
        estimate(nn.Linear(3, 4).requires_grad_(False), x, mode="training")
    with pytest.raises(InputsError, match="parameters that are not the module's"):
        estimate(layer, x, optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters()))
    with pytest.raises(InputsError, match="is none: give a name"):
        estimate(layer, x, optimizer=3)
    with pytest.raises(InputsError, match=r"decode=\(0, 3\): give"):
        estimate(layer, x, decode=(0, 3))
    with pytest.raises(InputsError, match="input_ids"):
        estimate(layer, x, decode=(1, 3))
    with pytest.raises(DeviceError, match="no CUDA device profile 'h100'"):
        estimate(layer, x, gpu="h100")
    with pytest.raises(TypeError, match="not the class Linear"):
        estimate(nn.Linear, x)
    with pytest.raises(RuntimeError, match="reduction dim"):
        estimate(layer, torch.ones(2, 5))


def test_nothing_is_kept_and_no_mode_is_left_on() -> None:
    import weakref

    model = nn.Linear(3, 4)
    with pytest.raises(RuntimeError):
        estimate(model, torch.ones(2, 5), optimizer="adamw")
    assert type(torch.ones(2)) is torch.Tensor
    found = estimate(model, torch.ones(2, 3), optimizer="adamw")
    ref = weakref.ref(model)
    del model, found
    gc.collect()
    assert ref() is None


def test_interrupted() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate(Slow(), torch.ones(2))
    assert torch.ones(2).sum().item() == 2


def test_json_and_pandas() -> None:
    import json

    model, inputs = made("vit")
    found = estimate(model, inputs, optimizer="adamw")
    said: dict[str, Any] = json.loads(json.dumps(found.to_dict()))
    assert said["peak_bytes"] == found.peak_bytes
    assert said["peak"]["by_category"] == found.peak.by_category
    frame = pytest.importorskip("pandas") and found.to_pandas()
    assert len(frame) == len(found.lives.op)
    alive = frame[(frame.born <= found.peak.event) & (frame.died > found.peak.event)]
    assert alive.num_bytes.sum() == found.peak_bytes


def test_a_module_and_inputs_on_meta() -> None:
    with torch.device("meta"):
        layer, x = nn.Linear(1 << 20, 1 << 20), torch.empty(4, 1 << 20)
    found = estimate(layer, x, optimizer="sgd", device="cuda")
    assert found.peak.by_category["parameters"] == 4 * ((1 << 40) + (1 << 20))


def test_fakes_on_two_devices() -> None:
    model = fake_like(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))
    model[0] = fake_like(nn.Linear(64, 64), device="cuda:1")

    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner[1](self.inner[0](x.to("cuda:1")).to("cpu"))

    found = estimate(Across(), torch.ones(4, 64), optimizer="sgd")
    assert found.device == "cuda:1"
    assert found.elsewhere["cpu"] >= 4 * (64 * 8 + 8)


def test_real_tensors_get_no_fake_gradients() -> None:
    head, net = nn.Linear(3, 1), nn.Linear(3, 3)
    with pytest.raises(InputsError, match=r"shape \[1, 3\] that requires a gradient"):
        estimate(net, torch.ones(2, 3), optimizer="sgd", loss=lambda out: head(out).sum())
    assert head.weight.grad is None
    inner = net.forward
    net.forward = lambda x: inner(x) * 2  # a closure over the real parameters
    with pytest.raises(InputsError, match=r"shape \[3, 3\] that requires a gradient"):
        estimate(net, torch.ones(2, 3), optimizer="sgd")
    assert net.weight.grad is None


def test_the_callers_switches_do_not_matter() -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    peak = estimate(model, x, optimizer="adamw").peak_bytes
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert estimate(model, x, optimizer="adamw").peak_bytes == peak


def test_optimizers_are_alike_however_they_are_given() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    ways = [
        "adamw",
        torch.optim.AdamW,
        torch.optim.AdamW(model.parameters()),
        partial(torch.optim.AdamW, lr=1e-4),
    ]
    x = torch.ones(2, 64)
    assert len({estimate(model, x, optimizer=o, gpu="a100-40gb").peak_bytes for o in ways}) == 1


def test_the_gpu_asked_for_is_the_one_there_is() -> None:
    class Asks(nn.Linear):
        names: ClassVar[list[str]] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.names.append(torch.cuda.get_device_name(x.device))
            return super().forward(x)

    estimate(Asks(3, 3), torch.ones(2, 3), gpu="h100-80gb", device="cuda:1")
    assert Asks.names == ["NVIDIA H100 80GB HBM3"]


def test_a_module_whose_error_was_caught_is_not_charged() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 6)
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.inner(x)
            return x @ self.weight

    found = estimate(Tries(), torch.ones(2, 3), mode="forward")
    assert found.by_module[""]["activations"] == 2 * 4 * 4


@pytest.mark.parametrize("name", ["lbfgs", "muon"])
def test_optimizers_that_cannot_be(name: str) -> None:
    with pytest.raises(InputsError, match=r"LBFGS|cannot be made of these parameters"):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), optimizer=name)


@pytest.mark.parametrize(
    "options", [{"round_to": 0}, {"round_to": "512"}, {"workspace_bytes": -1}, {"loss": "ce"}]
)
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InputsError, match=next(iter(options))):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), **options)


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:999"])
def test_devices_that_are_none(device: str) -> None:
    with pytest.raises(DeviceError):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), device=device)

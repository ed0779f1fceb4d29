"""Utilities of torch that training uses: fakes and deferred tensors are what eager's are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import utils
from torch.nn.utils import fusion, parametrizations, parametrize, prune, rnn
from torch.optim import swa_utils
from torch.utils import data

from tests.programs import assert_program
from torchfake import fake_mode

pytestmark = pytest.mark.filterwarnings("ignore")


def linear() -> nn.Module:
    return nn.Linear(6, 4)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 4))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def trained(module: nn.Module, shape: tuple[int, ...] = (5, 6)) -> Any:
    """A step of training, and the module after it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    result = module(torch.randn(shape))
    result.pow(2).mean().backward()
    optimizer.step()
    return module, optimizer, result


def without(module: nn.Module) -> nn.Module:
    return parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu()


def symmetric(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Symmetric())


PARAMETRIZED: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(linear()),
    "weight_norm(dim=None)": lambda: parametrizations.weight_norm(linear(), dim=None),
    "spectral_norm": lambda: parametrizations.spectral_norm(linear(), n_power_iterations=3),
    "spectral_norm, removed": lambda: without(parametrizations.spectral_norm(linear())),
    "old weight_norm": lambda: utils.weight_norm(linear()),
    "old spectral_norm": lambda: utils.spectral_norm(linear()),
    "old, removed": lambda: utils.remove_spectral_norm(utils.spectral_norm(linear())),
    "symmetric": lambda: symmetric(nn.Linear(6, 6)),
    "copied": lambda: copy.deepcopy(parametrizations.weight_norm(linear())),
    "orthogonal": lambda: parametrizations.orthogonal(linear()),
    "orthogonal(matrix_exp)": lambda: parametrizations.orthogonal(linear(), "weight", "matrix_exp"),
    "orthogonal(cayley)": lambda: parametrizations.orthogonal(
        linear(), orthogonal_map="cayley", use_trivialization=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrized_layers(name: str) -> None:
    assert_program(lambda: trained(PARAMETRIZED[name]()))


PRUNED: dict[str, Callable[[Any], Any]] = {
    "identity": lambda layer: prune.identity(layer, "weight"),
    "random_unstructured": lambda layer: prune.random_unstructured(layer, "weight", 0.3),
    "l1_unstructured": lambda layer: prune.l1_unstructured(layer, "weight", 7),
    "random_structured": lambda layer: prune.random_structured(layer, "weight", 0.3, dim=0),
    "ln_structured": lambda layer: prune.ln_structured(layer, "weight", 0.5, n=2, dim=1),
    "custom_from_mask": lambda layer: prune.custom_from_mask(layer, "weight", torch.ones(4, 6)),
    "global_unstructured": lambda layer: prune.global_unstructured(
        [(layer, "weight"), (layer, "bias")], pruning_method=prune.L1Unstructured, amount=0.4
    ),
}


@pytest.mark.parametrize("name", PRUNED)
def test_pruned_layers(name: str) -> None:
    def program() -> Any:
        layer = linear()
        PRUNED[name](layer)
        if "unstructured" in name:
            prune.remove(layer, "weight")
        return trained(layer)

    assert_program(program)


def packed(**options: Any) -> Any:
    sequences = [torch.randn(length, 3) for length in (4, 2, 5)]
    padded = rnn.pad_sequence(sequences, **options)
    first = options["batch_first"]
    lengths = torch.tensor([4, 2, 5], device="cpu")
    inputs = rnn.pack_padded_sequence(padded, lengths, batch_first=first, enforce_sorted=False)
    layer = nn.LSTM(3, 4, 2, batch_first=first, bidirectional=True)
    outputs, state = layer(inputs)
    results = rnn.pad_packed_sequence(outputs, batch_first=first, total_length=7)
    results[0].sum().backward()
    with torch.device("cpu"):  # for the lengths, which torch makes on the default device
        whole = rnn.unpack_sequence(rnn.pack_sequence(sequences, enforce_sorted=False))
    return layer, padded, list(inputs), results, state, whole


def clipped(**options: Any) -> Any:
    module = network()
    module(torch.randn(3, 6)).sum().backward()
    norm = utils.clip_grad_norm_(module.parameters(), 0.5, **options)
    utils.clip_grad_value_(module.parameters(), 0.01)
    total = utils.get_total_norm([p.grad for p in module.parameters()])  # type: ignore[misc]
    utils.clip_grads_with_norm_(module.parameters(), 0.1, total)
    return module, norm, total


def vectorized() -> Any:
    module = network()
    vector = utils.parameters_to_vector(module.parameters())
    utils.vector_to_parameters(vector * 2, module.parameters())
    return trained(module), vector


def fused() -> Any:
    image, norm = nn.Conv2d(3, 6, 3).eval(), nn.BatchNorm2d(6).eval()
    layer, flat = nn.Linear(3, 6).eval(), nn.BatchNorm1d(6).eval()
    return fusion.fuse_conv_bn_eval(image, norm), fusion.fuse_linear_bn_eval(layer, flat)


def called_functionally() -> Any:
    module, x, y = nn.Linear(4, 2), torch.randn(6, 4), torch.randn(6, 2)
    parameters = {name: p.detach() * 2 for name, p in module.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(module, parameters, (x,)), y)

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return module, functional_call(module, parameters, x), each


def stacked() -> Any:
    models = [network().eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(parameters: Any, buffers: Any, x: torch.Tensor) -> Any:
        return functional_call(base, (parameters, buffers), (x,))

    results = vmap(call, in_dims=(0, 0, None))(parameters, buffers, torch.randn(5, 6))
    results.sum().backward()
    return models, parameters, buffers, results


def skipped() -> Any:
    layer = utils.skip_init(nn.Linear, 6, 4)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return trained(layer)


def laid_out() -> Any:
    module = convolution()
    utils.convert_conv2d_weight_memory_format(module, torch.channels_last)  # type: ignore[arg-type]
    return trained(module, (2, 3, 4, 4))


def averaged(**options: Any) -> Any:
    module = network()
    mean = swa_utils.AveragedModel(module, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05)
    batches = [torch.randn(7, 6) for _ in range(3)]
    for batch in batches:
        optimizer.zero_grad()
        module(batch).sum().backward()
        optimizer.step()
        schedule.step()
        mean.update_parameters(module)
    swa_utils.update_bn(batches, mean)
    return module, mean, mean(torch.randn(3, 6)), optimizer


def loaded() -> Any:
    samples = data.TensorDataset(torch.randn(10, 6), torch.arange(10) % 4)
    some, others = data.random_split(samples, [0.7, 0.3])
    module, total = network(), torch.zeros(())
    optimizer = torch.optim.AdamW(module.parameters())
    for inputs, labels in data.DataLoader(some, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(inputs), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    weighted = data.WeightedRandomSampler(torch.rand(10).tolist(), 10)
    batches = list(data.DataLoader(samples, batch_size=5, sampler=weighted))
    return module, optimizer, total, list(others.indices), [list(b) for b in batches]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "packed": lambda: packed(batch_first=True, padding_value=2.0),
    "clipped": clipped,
    "clipped, by loops": lambda: clipped(norm_type=1.0, foreach=False, error_if_nonfinite=True),
    "vectorized": vectorized,
    "fused": fused,
    "functional_call": called_functionally,
    "stack_module_state": stacked,
    "skip_init": skipped,
    "memory format": laid_out,
    "AveragedModel": averaged,
    "AveragedModel, ema": lambda: averaged(
        multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
    "DataLoader": loaded,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_utilities(name: str) -> None:
    assert_program(PROGRAMS[name])


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {"skip_init", "DataLoader"}))
def test_utilities_on_fake_cuda(name: str) -> None:
    """``skip_init`` goes to the CPU unless it is told a device, as in eager."""
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        PROGRAMS[name]()

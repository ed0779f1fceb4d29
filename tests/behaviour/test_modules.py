"""Modules are converted, copied, stored and loaded as in eager, and ties survive."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.behaviour.conftest import Tied, network, tied
from tests.conftest import (
    all_fake,
    assert_inside,
    assert_outlives,
    describe,
)
from torchfake import fake_mode

MODULE_USES: dict[str, Callable[[nn.Module], Any]] = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "double": lambda m: m.double(),
    "float": lambda m: m.half().float(),
    "cpu": lambda m: m.cpu(),
    "to_dtype": lambda m: m.to(torch.float16),
    "to_device_dtype": lambda m: m.to("cpu", torch.float64),
    "to_memory_format": lambda m: m.to(memory_format=torch.preserve_format),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "apply": lambda m: m.apply(lambda x: x.weight.data.fill_(1.0) if hasattr(x, "weight") else x),
    "type": lambda m: m.type(torch.float16),
    "eval": lambda m: m.eval(),
    "requires_grad": lambda m: m.requires_grad_(False),
    "deepcopy": copy.deepcopy,
    "deepcopy_half": lambda m: copy.deepcopy(m).half(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "save": lambda m: save_and_load(m, weights_only=False),
    "save_pair": lambda m: save_and_load({"a": m, "b": [m]}, weights_only=False)["b"][0],
    "state_dict": lambda m: list(m.state_dict().items()),
    "save_state_dict": lambda m: list(save_and_load(m.state_dict(), weights_only=True).items()),
    "load_state_dict": lambda m: load_into_itself(m, assign=False),
    "load_state_dict_assign": lambda m: load_into_itself(m, assign=True),
    "zero_grad": lambda m: m.zero_grad() or m,
    "flat_vector": lambda m: nn.utils.parameters_to_vector(m.parameters()),
    "share_memory": lambda m: m.share_memory(),
}


def save_and_load(obj: Any, *, weights_only: bool) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def load_into_itself(module: nn.Module, *, assign: bool) -> Any:
    other = copy.deepcopy(module)
    keys = other.load_state_dict(module.state_dict(), assign=assign)
    return other, keys.missing_keys, keys.unexpected_keys


@pytest.mark.parametrize("build", [network, tied])
@pytest.mark.parametrize("name", MODULE_USES)
def test_modules(name: str, build: Callable[[], Any]) -> None:
    """Modules are converted, copied, stored and loaded after the context; ties survive."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        return MODULE_USES[name](module)

    assert_outlives(build, use)


@pytest.mark.parametrize("name", MODULE_USES)
def test_modules_inside(name: str) -> None:
    """The same inside the mode."""
    assert_inside(lambda: MODULE_USES[name](tied()[0]))


def test_module_conversion_keeps_the_parameter_objects() -> None:
    """``.half()`` changes the Parameter itself, as in eager: optimizers still refer to it."""
    for convert in (nn.Module.half, nn.Module.double, lambda m: m.to("cuda:1")):
        with fake_mode():
            module = nn.Linear(2, 2)
        before = list(module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        convert(module)
        assert all(a is b for a, b in zip(before, module.parameters(), strict=True))
        assert optimizer.param_groups[0]["params"][0] is module.weight


def test_cuda_and_to_empty() -> None:
    """Modules move to devices that this machine lacks, by every method that takes a device."""
    cuda2 = torch.device("cuda:2")
    for move in (
        lambda m: m.cuda(2),
        lambda m: m.cuda("cuda:2"),
        lambda m: m.to(cuda2),
        lambda m: m.to("cuda:2", torch.float16),
        lambda m: m.to_empty(device="cuda:2"),
        lambda m: m.to(torch.empty(0, device="cpu")).to(device=cuda2),
    ):
        with fake_mode():
            module = tied()[0]
        module = move(module)
        assert {t.device for t in (*module.parameters(), *module.buffers())} == {cuda2}
        assert module.head.weight is module.embed.weight
        assert all_fake(module)


def test_pickled_fakes_are_metadata_only() -> None:
    """A gigabyte of weights is a kilobyte on disk; aliases and device come back."""
    with fake_mode():
        weight = torch.empty(2**14, 2**14).to(torch.float16)
        pair = {"all": weight, "row": weight[3], "same": weight}
    for store in (
        lambda o: pickle.loads(pickle.dumps(o)),
        lambda o: save_and_load(o, weights_only=True),
    ):
        back = store(pair)
        assert back["same"] is back["all"]
        assert back["row"]._base is None
        assert back["row"].untyped_storage()._cdata == back["all"].untyped_storage()._cdata
        assert describe(back) == describe({**pair, "row": weight.detach()[3].detach()})
    assert len(pickle.dumps(pair)) < 4096
    file = io.BytesIO()
    torch.save(pair, file)
    assert file.tell() < 8192
    assert pickle.loads(pickle.dumps(weight.to("cuda:3"))).device == torch.device("cuda:3")


def test_torch_load_inside_reads_a_real_file() -> None:
    """A checkpoint of real tensors loads as fakes of the same metadata."""
    module = Tied()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    with fake_mode():
        state = torch.load(file)
        loaded = Tied()
        loaded.load_state_dict(state)
    assert describe(state) == describe(module.state_dict())
    assert all_fake(state)
    assert describe(loaded) == describe(module)


def test_load_state_dict_of_wrong_shapes() -> None:
    """The error is torch's own message about size mismatches."""
    with fake_mode():
        state, module = nn.Linear(3, 3).state_dict(), nn.Linear(4, 3)
    with pytest.raises(RuntimeError) as of_fakes:
        module.load_state_dict(state)
    with pytest.raises(RuntimeError) as of_real:
        nn.Linear(4, 3).load_state_dict(nn.Linear(3, 3).state_dict())
    assert str(of_fakes.value) == str(of_real.value)

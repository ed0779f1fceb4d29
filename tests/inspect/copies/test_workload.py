"""What is run: a fake copy, on the device that is named, whatever modes the caller is in."""

from __future__ import annotations

import copy
import gc
import re
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import torchfake
from tests.inspect.small_models import model_and_inputs
from torchfake.errors import DeviceError
from torchfake.inspect import estimate, fit, summary
from torchfake.inspect.copies.workload import Workload


def test_the_module_is_not_changed() -> None:
    model, inputs = model_and_inputs("convnet")
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


def test_no_reference_and_no_mode_is_left() -> None:
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


def test_an_interrupt_leaves_no_mode() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate(Slow(), torch.ones(2))
    assert torch.ones(2).sum().item() == 2


def test_modes_of_the_caller_do_not_matter() -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    peak = estimate(model, x, optimizer="adamw").peak_bytes
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert estimate(model, x, optimizer="adamw").peak_bytes == peak


def test_the_module_sees_the_gpu_that_was_named() -> None:
    class Asks(nn.Linear):
        names: ClassVar[list[str]] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.names.append(torch.cuda.get_device_name(x.device))
            return super().forward(x)

    estimate(Asks(3, 3), torch.ones(2, 3), gpu="h100-80gb", device="cuda:1")
    assert Asks.names == ["NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:999"])
def test_no_such_device(device: str) -> None:
    with pytest.raises(DeviceError):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), device=device)


def test_no_such_gpu_and_no_module() -> None:
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with pytest.raises(DeviceError, match="gpu='h1000': there is no such GPU"):
        estimate(layer, x, gpu="h1000")
    with pytest.raises(TypeError, match="not the class Linear"):
        estimate(nn.Linear, x)


class Batch(MutableMapping[str, torch.Tensor]):
    """A mapping that is iterated over its first dim, as a TensorDict is."""

    batch_size = torch.Size([])

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.tensors[key]

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self.tensors[key] = value

    def __delitem__(self, key: str) -> None:
        del self.tensors[key]

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("iteration over a 0-d tensordict")

    def keys(self) -> Any:
        return self.tensors.keys()

    def items(self) -> Any:
        return self.tensors.items()

    def values(self) -> Any:
        return self.tensors.values()


def test_mappings_that_are_not_iterated_over_their_keys() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.batch, self.linear = Batch(a=torch.ones(3)), nn.Linear(4, 4)

        def forward(self, given: Batch) -> torch.Tensor:
            return self.linear(given["x"])

    found = estimate(Holds(), Batch(x=torch.ones(2, 4)))
    assert found.peak.by_category["inputs"] == 32
    assert "inference in fp32 on cpu" in str(found)


def test_empty_dicts_are_copied_like_all_others() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].kept = net[1].kept = shared = OrderedDict()
    made = Workload(net).fake_copy().module
    assert made[0].kept is made[1].kept
    assert made[0].kept is not shared
    hooks = "_forward_hooks", "_backward_hooks", "_state_dict_hooks"
    for name in hooks:
        each = [getattr(layer, name) for layer in (*net, *made)]
        assert {type(one) for one in each} == {OrderedDict}
        assert len({id(one) for one in each}) == 4
    made[0].register_forward_hook(lambda *_: None)
    assert not net[0]._forward_hooks
    assert not made[1]._forward_hooks


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("models/llama.json", "torchfake {} models/llama.json"),
        ("GPT2Model", "torchfake {} transformers:GPT2Model"),
        ("timm:resnet50", "torchfake {} timm:resnet50"),
        (torch.nn.Linear, "the class Linear: create an instance, in fake_mode() if it is large"),
        (3, "not a int"),
    ],
)
def test_what_is_no_module_is_named_with_a_remedy(given: Any, said: str) -> None:
    for call in (summary, estimate, fit):
        command = "inspect" if call is summary else "fit"
        with pytest.raises(TypeError, match=re.escape(said.format(command))):
            call(given)


def test_what_builds_a_name_is_said() -> None:
    with pytest.raises(TypeError) as refused:
        summary("torch.nn:ReLU")  # type: ignore[arg-type]
    (code,) = re.findall(r"build it, (.*), or", str(refused.value))
    assert isinstance(eval(code, {"torchfake": torchfake}), torch.nn.ReLU)

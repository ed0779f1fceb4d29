"""Does it run: what is said of success and of failure is what a real run would say."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake import deferred_init, fake_mode
from torchfake.errors import CheckError, UnknownValueError
from torchfake.inspect import check
from torchfake.inspect.records.tensor_specs import to_specs


@pytest.mark.parametrize("name", MODELS)
def test_the_output_is_that_of_a_real_run(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = check(model, inputs)
    assert found.output == to_specs(model(**inputs))
    assert found.inputs == to_specs(inputs)


@pytest.mark.parametrize("name", ["gpt2", "convnet"])
def test_backward_runs_too(name: str) -> None:
    model, inputs = model_and_inputs(name)
    assert check(model, inputs, backward=True).output == to_specs(model(**inputs))
    assert all(p.grad is None for p in model.parameters())


def broken(name: str, path: str, part: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    model, inputs = model_and_inputs(name)
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, part)
    return model, inputs


BREAKS = {
    "llama": ("model.layers.2.mlp.down_proj", nn.Linear(13, 4)),
    "gpt2": ("transformer.h.1.ln_2", nn.LayerNorm(7)),
    "t5": ("decoder.block.1.layer.0.SelfAttention.q", nn.Linear(9, 9)),
    "vit": ("classifier", nn.Linear(5, 5)),
    "convnet": ("blocks.3.conv2", nn.Conv2d(99, 16, 3)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_failure_names_the_module_and_has_the_error_of_eager(name: str) -> None:
    path, part = BREAKS[name]
    model, inputs = broken(name, path, part)
    with pytest.raises(CheckError) as caught:
        check(model, inputs)
    error = caught.value
    assert error.module == path
    assert f"in {path} ({type(part).__name__})" in str(error)
    assert error.op.startswith("aten.")
    assert re.search(r"float32\[[\d, ]+\] on cpu", error.arguments)
    file, _, line = error.line.rpartition(":")
    assert file.endswith(".py")
    assert int(line) > 0
    assert "torch/nn" not in file.replace("\\", "/")
    assert error.source
    assert "\n" not in str(error)
    with pytest.raises(type(error.__cause__)):
        model(**inputs)  # for real


def message(program: Callable[[], Any]) -> str:
    with pytest.raises(CheckError) as caught:
        program()
    text = str(caught.value).replace(__file__, "FILE")
    return re.sub(r"FILE:\d+", "FILE:LINE", text)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 8)
        self.down = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


def test_messages_to_the_letter() -> None:
    with pytest.raises(RuntimeError) as words:
        Net()(torch.ones(2, 3))
    expect(
        message(lambda: check(Net(), torch.ones(2, 3))).replace(str(words.value), "WORDS OF EAGER"),
        """Net does not run on these inputs: in down (Linear), aten.addmm.default(self float32[3] on cpu, mat1 float32[2, 8] on cpu, mat2 float32[9, 3] on cpu) called by torch.nn.functional.linear: WORDS OF EAGER; at FILE:LINE: return self.down(self.up(x).relu())""",
    )
    expect(
        message(lambda: check(nn.CrossEntropyLoss(), torch.ones(2, 3), torch.ones(4).long())),
        """\
CrossEntropyLoss does not run on these inputs: in its own forward (CrossEntropyLoss), torch.nn.functional.cross_entropy(float32[2, 3] on cpu, int64[4] on cpu, weight None, size_average None, ignore_index -100, reduce None, reduction 'mean', label_smoothing 0.0): Expected input batch_size (2) to match target batch_size (4).""",
    )
    expect(
        message(lambda: check(nn.Linear(2, 2))),
        """\
Linear does not run on these inputs: in its own forward (Linear): Linear.forward() missing 1 required positional argument: 'input'. No inputs were given: give its inputs after the module, or input_size=(2, 2)""",
    )


def test_another_device_is_a_failure_as_it_is_in_eager() -> None:
    with fake_mode(fake_cuda=True):
        layer = nn.Linear(3, 3, device="cuda")
    text = message(lambda: check(layer, torch.ones(2, 3)))
    assert "mat1 float32[2, 3] on cpu" in text
    assert "on cuda:0" in text
    assert check(layer, torch.ones(2, 3), device="cuda").output.device == "cuda:0"


def test_a_sequence_longer_than_the_positions() -> None:
    model, _ = model_and_inputs("gpt2")  # has 64
    assert check(model, torch.zeros(1, 64, dtype=torch.long)).output
    for device in ("cpu", "cuda"):
        with pytest.raises(CheckError, match=r"in transformer.wpe \(Embedding\), aten.embed") as e:
            check(model, torch.zeros(1, 65, dtype=torch.long), device=device)
        assert isinstance(e.value.__cause__, IndexError)


def test_an_error_that_the_model_caught_is_not_reported() -> None:
    class Tries(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                torch.mm(x, x)
            return {}["missing"]

    with pytest.raises(CheckError, match=r"in its own forward \(Tries\): 'missing'") as caught:
        check(Tries(), torch.ones(2, 3))
    assert caught.value.op == ""
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_branch_on_an_unknown_value_is_no_check_error() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if (x * torch.rand(300)).sum() > 0 else -x

    with pytest.raises(UnknownValueError, match=r"^in 0 \(Branches\): "):
        check(nn.Sequential(Branches()), torch.ones(300))


def test_nothing_is_changed() -> None:
    model, inputs = broken("convnet", *BREAKS["convnet"])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckError):
        check(model, inputs)
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )
    assert type(torch.ones(1)) is torch.Tensor


def test_deferred_modules_are_not_recorded_on() -> None:
    model = deferred_init(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    found = check(model, torch.ones(2, 3), backward=True)
    assert found.output.shape == (2, 4)
    assert model[1].running_mean.tolist() == [0.0] * 4


def test_a_result_shows_itself() -> None:
    found = check(nn.LSTM(3, 4), torch.ones(5, 2, 3))
    expect(
        str(found),
        """\
input 0       float32[5, 2, 3] on cpu
output 0      float32[5, 2, 4] on cpu
output 1.0-1  float32[1, 2, 4] on cpu""",
    )
    assert found.to_dict()["output"][0] == {
        "shape": [5, 2, 4],
        "dtype": "float32",
        "device": "cpu",
    }
    assert "float32[5, 2, 4]" in found._repr_html_()


def test_nothing_in_and_nothing_out() -> None:
    class Empty(nn.Module):
        def forward(self) -> list[Any]:
            return []

    assert str(check(Empty())) == ""


def test_the_module_after_one_whose_error_was_caught() -> None:
    class Then(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.inner(x)
            return x + torch.ones(7)

    with pytest.raises(CheckError, match=r"in its own forward \(Then\), aten.add") as caught:
        check(Then(), torch.ones(2, 3))
    assert caught.value.module == ""

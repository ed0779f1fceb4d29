"""Building: torch's default dtype and device hold meanwhile, and are restored."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from tests.inspect.targets.conftest import made, target_of_callable
from torchfake.errors import TargetError
from torchfake.inspect import device_named, dtype_named
from torchfake.inspect.targets.build import build


@pytest.mark.parametrize("name", ["bf16", "bfloat16", "torch.bfloat16"])
def test_a_dtype_holds_while_building_and_after(name):
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(torch.get_default_dtype())
            self.register_buffer("positions", torch.arange(3))
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float32))

    model = build(target_of_callable(Model), dtype=dtype_named(name)).module
    assert seen == [torch.bfloat16]
    assert model.weight.dtype == torch.bfloat16
    assert model.positions.dtype == torch.int64
    assert torch.get_default_dtype() == torch.float32


def test_eight_bit_floats():
    model = build(target_of_callable(lambda: nn.Linear(2, 2)), dtype=dtype_named("fp8")).module
    assert model.weight.dtype == torch.float8_e4m3fn


def test_a_device_without_a_gpu():
    model = build(
        target_of_callable(lambda: nn.BatchNorm1d(2)), device=device_named("cuda:1")
    ).module
    assert {str(t.device) for t in (*model.parameters(), *model.buffers())} == {"cuda:1"}
    assert torch.ones(1).device.type == "cpu"


def test_torch_is_restored_when_a_constructor_fails():
    def construct():
        raise ValueError("no")

    with pytest.raises(TargetError, match="f could not be built: ValueError: no") as caught:
        build(target_of_callable(construct), dtype=torch.float64, device=device_named("cuda"))
    assert isinstance(caught.value.__cause__, ValueError)
    assert torch.get_default_dtype() == torch.float32


def test_the_path_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text("from torch import nn\nf = lambda: nn.Linear(1, 1)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    made("own_model:f")
    assert sys.path == before


def test_a_callable_of_a_file_may_import_its_neighbours(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "neighbour_of_model.py").write_text("WIDTH = 3\n")
    (folder / "model.py").write_text(
        "import neighbour_of_model\nfrom torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, out=2):\n"
        "        import neighbour_of_model as again\n"
        "        super().__init__(again.WIDTH, out)\n"
    )
    assert made(f"{folder}/model.py:Net", "out=5").weight.shape == (5, 3)

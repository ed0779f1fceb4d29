"""accelerate on fakes and on deferred modules: build without weights, place, offload, train."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator, hooks, utils
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils.offload import load_offloaded_weight, offload_weight
from safetensors.torch import save_file
from torch import nn

from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_module

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _state() -> Iterator[None]:
    """accelerate has one state for the process."""
    yield
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(7)
    Accelerator(cpu=True).save_model(Model(), folder, max_shard_size="1KB")
    return folder


class Model(nn.Module):
    """A small classifier with a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])
        self.head = nn.Linear(8, 10, bias=False)
        self.register_buffer("positions", torch.arange(8.0), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(tokens).mean(1) + self.positions
        return self.head(self.blocks(hidden))  # type: ignore[no-any-return]


def tokens() -> torch.Tensor:
    return torch.randint(0, 10, (4, 5))


def described(module: nn.Module) -> dict[str, Any]:
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    return {
        name: (t.shape, t.dtype, t.device, t.requires_grad, isinstance(t, nn.Parameter))
        for name, t in tensors
    }


Program = Callable[[Path], tuple[nn.Module, Any]]


def empty_weights(_: Path) -> tuple[nn.Module, Any]:
    with accelerate.init_empty_weights():
        model = Model()
    before = described(model)
    for name, parameter in list(model.named_parameters()):
        value = torch.zeros(parameter.shape)
        utils.set_module_tensor_to_device(model, name, "cpu", value=value)
    return model, (before, model(tokens()).shape)


def init_on_device(_: Path) -> tuple[nn.Module, Any]:
    with accelerate.init_on_device(CPU):
        model = Model()
    return model, None


def set_tensors(_: Path) -> tuple[nn.Module, Any]:
    model = Model()
    place = utils.set_module_tensor_to_device
    place(model, "head.weight", "meta")
    before = described(model)
    place(model, "head.weight", "cpu", value=torch.ones(10, 8))
    place(model, "blocks.0.0.bias", "cpu", dtype=torch.float16)
    place(model, "positions", "cpu", value=torch.zeros(8))
    return model, before


def device_maps(_: Path) -> tuple[nn.Module, Any]:
    model = Model()
    return model, (
        utils.get_balanced_memory(model, {0: 1000, 1: 1000, "cpu": 10000}),
        accelerate.infer_auto_device_map(model, {"cpu": 900, "disk": 10000}),
        utils.compute_module_sizes(model),
    )


def cpu_offload(_: Path) -> tuple[nn.Module, Any]:
    model = accelerate.cpu_offload(Model(), execution_device=CPU)
    shape = model(tokens()).shape
    offloaded = described(model)
    hooks.remove_hook_from_submodules(model)
    return model, (shape, offloaded)


def cpu_offload_with_hook(_: Path) -> tuple[nn.Module, Any]:
    model, hook = accelerate.cpu_offload_with_hook(Model(), execution_device=CPU)
    shape = model(tokens()).shape
    hook.offload()
    hook.remove()
    return model, shape


def disk_offload(_: Path) -> tuple[nn.Module, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = accelerate.disk_offload(Model(), folder, execution_device=CPU)
        return model, model(tokens()).shape


def dispatch(_: Path) -> tuple[nn.Module, Any]:
    places = {"embedding": "cpu", "head": "cpu", "positions": "cpu", "blocks": "disk"}
    with tempfile.TemporaryDirectory() as folder:
        model = accelerate.dispatch_model(Model(), places, main_device="cpu", offload_dir=folder)
        return model, model(tokens()).shape


def load_in_model(checkpoint: Path) -> tuple[nn.Module, Any]:
    model = Model()
    accelerate.load_checkpoint_in_model(model, checkpoint)
    return model, None


def load_and_dispatch(checkpoint: Path) -> tuple[nn.Module, Any]:
    with accelerate.init_empty_weights():
        model = Model()
    model = accelerate.load_checkpoint_and_dispatch(model, checkpoint, device_map={"": "cpu"})
    return model, model(tokens()).shape


def align_hooks(_: Path) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    hook = hooks.AlignDevicesHook(execution_device="cpu", offload=True)
    hooks.add_hook_to_module(model[0], hook)
    hooks.add_hook_to_module(model[1], hooks.SequentialHook(hooks.ModelHook()), append=True)
    shape, during = model(torch.ones(2, 3)).shape, described(model)
    hooks.remove_hook_from_submodules(model)
    return model, (shape, during)


def train(_: Path) -> tuple[nn.Module, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    data = [{"x": torch.zeros(5, dtype=torch.long)} for _ in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch["x"]).sum()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model), accelerator.gather(loss).shape


PROGRAMS: list[Program] = [
    empty_weights, init_on_device, set_tensors, device_maps, cpu_offload, cpu_offload_with_hook,
    disk_offload, dispatch, load_in_model, load_and_dispatch, align_hooks, train,
]  # fmt: skip

MODES: dict[str, Callable[[], Any]] = {
    "fake": fake_mode,
    "fake CUDA": lambda: fake_mode(fake_cuda=2),
    "deferred": deferred_mode,
}


def cases() -> list[Any]:
    """Each program in one of the modes; in its own session in all of them."""
    everything = "ECOSYSTEM" in os.environ
    return [
        pytest.param(program, mode, id=f"{program.__name__}-{mode}")
        for i, program in enumerate(PROGRAMS)
        for j, mode in enumerate(MODES)
        if everything or i % len(MODES) == j
    ]


@pytest.mark.filterwarnings("ignore")  # accelerate's, of eager programs too
@pytest.mark.parametrize(("program", "mode"), cases())
def test_as_in_eager(program: Program, mode: str, checkpoint: Path) -> None:
    torch.manual_seed(0)
    eager, expected = program(checkpoint)
    torch.manual_seed(0)
    with MODES[mode]():
        model, answer = program(checkpoint)
    assert answer == expected
    assert described(model) == described(eager)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    assert all(t.is_meta or is_fake(t) for t in tensors.values())
    if mode == "deferred":
        if is_deferred(model):
            materialize_module(model)
        for name, value in [*eager.named_parameters(), *eager.named_buffers()]:
            assert value.is_meta or torch.equal(tensors[name], value), name


def test_weights_on_disk_are_fakes_after_the_mode(tmp_path: Path) -> None:
    with fake_mode():
        model = accelerate.disk_offload(Model(), tmp_path, execution_device=CPU)
        x = tokens()
    assert is_fake(model(x))
    assert not list(tmp_path.glob("head*"))  # a fake has nothing to write


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_weight_is_offloaded_and_loaded_by_hand(tmp_path: Path, dtype: Any) -> None:
    for mode in (fake_mode, deferred_mode):
        with mode():
            weight, index = torch.randn(300, 400, dtype=dtype), {}
            accelerate.utils.offload_weight(weight, "weight", tmp_path, index)
            file = tmp_path / "weight.dat"
            loaded = accelerate.utils.load_offloaded_weight(file, index["weight"])
        assert is_fake(loaded)
        assert (loaded.shape, loaded.dtype) == (weight.shape, dtype)


def test_functions_imported_by_name(tmp_path: Path) -> None:
    """In this module, before the mode was entered; afterwards both are accelerate's own again."""
    with fake_mode():
        weight = torch.randn(300, 400)
        index = offload_weight(weight, "weight", tmp_path, {})
        loaded = load_offloaded_weight(tmp_path / "weight.dat", index["weight"])
    assert is_fake(loaded)
    assert loaded.shape == weight.shape
    assert offload_weight is accelerate.utils.offload.offload_weight


@pytest.mark.parametrize("places", [{"": "cpu"}, {"0": "cpu", "1": "disk"}])
def test_a_checkpoint_is_loaded_with_an_offloaded_state_dict(tmp_path: Path, places: Any) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(100, 300), nn.Linear(300, 100))

    real = build()
    file, folder = tmp_path / "model.safetensors", tmp_path / "offloaded"
    save_file(real.state_dict(), file, metadata={"format": "pt"})
    options = {"device_map": places, "offload_folder": str(folder), "offload_state_dict": True}
    expected = build()
    accelerate.load_checkpoint_in_model(expected, str(file), **options)
    for mode in (fake_mode, deferred_mode):
        with mode():
            module = build()
            accelerate.load_checkpoint_in_model(module, str(file), **options)
        assert described(module) == described(expected)
    if places == {"": "cpu"}:
        materialize_module(module)
        assert torch.equal(module[0].weight, real[0].weight)

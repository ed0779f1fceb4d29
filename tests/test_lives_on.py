"""Fakes whose mode has ended behave as the real tensors would: eager is asked each time."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.common_optimizers import optim_db
from torch.utils.checkpoint import checkpoint

import torchfake
from conftest import (
    all_fake,
    assert_inside,
    assert_outlives,
    assert_same_outside,
    describe,
    generators_stand_still,
)
from torchfake import fake_mode, is_fake


class Tied(nn.Module):
    """An embedding and a head that share one weight, with a buffer beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("tiny", torch.ones(2, dtype=torch.float16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(F.linear(x, self.head.weight)[:, :4]))


def linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(4, 3), torch.randn(2, 4)


def network() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Dropout(0.1), nn.Linear(6, 3))
    return nn.Sequential(*layers), torch.randn(2, 4)


def tied() -> tuple[nn.Module, torch.Tensor]:
    return Tied(), torch.randn(2, 4)


def matrix() -> tuple[torch.Tensor]:
    return (torch.randn(3, 4),)


TENSOR_USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda a: a + 1,
    "radd": lambda a: 1 - a,
    "matmul": lambda a: a @ a.mT,
    "inplace": lambda a: a.add_(1).t_(),
    "slices": lambda a: (a[1:, ::2], a[..., None], a[a.new_tensor([0, 2], dtype=torch.int64)]),
    "mixes_with_real": lambda a: a + torch.ones(4),
    "cat_with_real": lambda a: torch.cat([a, torch.ones(1, 4)]),
    "new_from": lambda a: (a.new_zeros(2), a.new_ones(2, 3), a.new_full((2,), 1.0)),
    "new": lambda a: (a.new(2, 3), a.new(), a.new([1.0, 2.0]), a.new(torch.Size([2]))),
    "likes": lambda a: (torch.empty_like(a), torch.rand_like(a), torch.full_like(a, 2.0)),
    "to_dtype": lambda a: (a.half(), a.double(), a.to(torch.int8), a.type(torch.bfloat16)),
    "type_text": lambda a: (a.type(), a.bool().type(), a.to(torch.complex64).type()),
    "set_data": lambda a: setattr(a, "data", a.data.new_ones(5, 2)) or a,
    "detach": lambda a: (a.detach(), a.data, a.clone(), a.contiguous()),
    "requires_grad": lambda a: a.requires_grad_() * 2,
    "sizes": lambda a: (a.size(0), a.numel(), a.dim(), len(a), a.element_size(), a.nbytes),
    "questions": lambda a: (a.is_contiguous(), a.is_floating_point(), a.is_cuda, a.is_meta),
    "storage": lambda a: (a.untyped_storage().nbytes(), a.storage_offset(), a[1:].stride()),
    "iterates": lambda a: (list(a), a.unbind(1), a.split(2)),
    "resize": lambda a: a.resize_(2, 3),
    "complex": lambda a: (
        torch.complex(a, a).conj(),
        torch.complex(a, a).mH.real,
        torch.fft.rfft(a),
    ),
}


@pytest.mark.parametrize("name", TENSOR_USES)
def test_tensors(name: str) -> None:
    """Plain tensors are used on after the context."""
    assert_outlives(matrix, TENSOR_USES[name])


def test_backward() -> None:
    """Gradients arrive, once for each backward, and accumulate."""

    def train(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        module(x).sum().backward()
        (module(x) ** 2).mean().backward()
        return module, x.grad

    for build in (linear, network, tied):
        assert_outlives(build, train)


def test_backward_of_a_graph_made_inside() -> None:
    """The graph recorded in the mode is run after it."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        module, x = network()
        return module, module(x).sum()

    def run_back(module: nn.Module, loss: torch.Tensor) -> Any:
        loss.backward()
        return module

    assert_outlives(build, run_back)


def test_autograd_api() -> None:
    """``torch.autograd.grad``, double backward, jacobian, custom Functions."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0]

    def use(a: torch.Tensor) -> Any:
        a.requires_grad_()
        (first,) = torch.autograd.grad((a**3).sum(), a, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), a)
        jacobian = torch.autograd.functional.jacobian(lambda x: x @ x.mT, a)
        Twice.apply(a).sum().backward()
        return first, second, jacobian, a.grad

    assert_outlives(matrix, use)


MOVES = ["cuda:1", "cuda", torch.device("cuda", 3), "cpu"]


@pytest.mark.parametrize("device", MOVES, ids=str)
def test_devices_after_the_mode(device: Any) -> None:
    """A fake that outlived its mode may go to any device, and work there, forth and back."""
    expected = torch.device(device)
    if expected.type == "cuda":
        expected = torch.device("cuda", expected.index or 0)
    with fake_mode():
        module, x = network()
    moved, there = x.to(device), copy.deepcopy(module).to(device)
    assert moved.device == expected
    assert {p.device for p in there.parameters()} == {expected}
    out = there(moved)
    out.sum().backward()
    assert {p.grad.device for p in there.parameters()} == {expected}
    assert out.device == expected
    assert out.cpu().device.type == x.device.type == "cpu"
    assert x.to(moved).device == expected
    assert x.to(3).device == x.cuda(3).device == torch.device("cuda:3")
    assert torch.zeros_like(moved).device == torch.empty_like(x, device=device).device == expected
    assert not torch.cuda.is_initialized()


def test_two_devices_after_the_mode() -> None:
    """In torch's own words, with the operator's name."""
    with fake_mode():
        a = torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        a + a.to("cuda:1")
    assert (a.to("cuda:1") + torch.tensor(1.0)).device == torch.device("cuda:1")


# Modules.


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
    """The same inside."""
    assert_inside(lambda: MODULE_USES[name](tied()[0]))


def test_module_conversion_keeps_the_parameter_objects() -> None:
    """``.half()`` changes the Parameter itself, as in eager: optimizers keep their hold of it."""
    for convert in (nn.Module.half, nn.Module.double, lambda m: m.to("cuda:1")):
        with fake_mode():
            module = nn.Linear(2, 2)
        before = list(module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        convert(module)
        assert all(a is b for a, b in zip(before, module.parameters(), strict=True))
        assert optimizer.param_groups[0]["params"][0] is module.weight


def test_cuda_and_to_empty() -> None:
    """Devices this machine does not have, by every spelling a module knows."""
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
        twin = Tied()
        twin.load_state_dict(state)
    assert describe(state) == describe(module.state_dict())
    assert all_fake(state)
    assert describe(twin) == describe(module)


def test_load_state_dict_of_wrong_shapes() -> None:
    """In torch's own message about size mismatches."""
    with fake_mode():
        state, module = nn.Linear(3, 3).state_dict(), nn.Linear(4, 3)
    with pytest.raises(RuntimeError) as of_fakes:
        module.load_state_dict(state)
    with pytest.raises(RuntimeError) as of_real:
        nn.Linear(4, 3).load_state_dict(nn.Linear(3, 3).state_dict())
    assert str(of_fakes.value) == str(of_real.value)


# Reparametrizations, lazy modules, hooks.


def old_style(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrap(module: nn.Module) -> nn.Module:
        with pytest.warns(FutureWarning):
            return function(module)

    return wrap


NORMS: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "orthogonal_cayley": lambda m: nn.utils.parametrizations.orthogonal(
        m, orthogonal_map="cayley", use_trivialization=False
    ),
    "old_weight_norm": old_style(nn.utils.weight_norm),
    "old_spectral_norm": nn.utils.spectral_norm,
    "custom": lambda m: nn.utils.parametrize.register_parametrization(m, "weight", Symmetric()),
}


class Symmetric(nn.Module):
    """A parametrization of the user's own, without an inverse."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).mT


@pytest.mark.parametrize("name", NORMS)
def test_parametrizations(name: str) -> None:
    """Put on and trained, after the mode and inside it."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        return nn.Linear(4, 4), torch.randn(2, 4)

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        module = NORMS[name](module)
        out = module(x)
        out.sum().backward()
        return module, out, list(module.state_dict())

    assert_outlives(build, use)
    assert_inside(lambda: use(*build()))


def test_parametrizations_are_removed() -> None:
    """``remove_parametrizations`` leaves what eager leaves."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        module = nn.utils.parametrizations.weight_norm(module)
        nn.utils.parametrize.remove_parametrizations(module, "weight")
        return module, module(x)

    assert_outlives(linear, use)


LAZY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.LazyLinear(5), (2, 4)),
    "stack": (lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d()), (2, 4)),
    "conv": (lambda: nn.Sequential(nn.LazyConv2d(5, 3), nn.LazyInstanceNorm2d()), (2, 3, 8, 8)),
    "conv_transpose": (lambda: nn.LazyConvTranspose1d(4, 2), (2, 3, 8)),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_dry_run(name: str) -> None:
    """A dry run gives lazy modules their parameters, inside and after the mode."""
    make, shape = LAZY[name]

    def run(module: nn.Module, x: torch.Tensor) -> Any:
        out = module(x)
        out.sum().backward()
        return module, out, [type(m) for m in module.modules()]

    assert_outlives(lambda: (make(), torch.randn(shape)), run)
    assert_inside(lambda: run(make(), torch.randn(shape)))


def test_lazy_module_before_its_dry_run() -> None:
    """An uninitialized parameter says what eager's says when it is used or shown."""
    with fake_mode():
        lazy = nn.LazyLinear(3)
    assert isinstance(lazy.weight, nn.parameter.UninitializedParameter)
    assert isinstance(lazy.weight, nn.Parameter)
    with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
        lazy.weight + 1
    with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized parameter"):
        _ = lazy.weight.shape


def test_hooks() -> None:
    """Every kind of hook fires as often as in eager, with the same metadata."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        seen: list[Any] = []

        def record(tag: str) -> Callable[..., None]:
            return lambda *values: seen.append(
                (tag, describe([v for v in values if not isinstance(v, nn.Module)]))
            )

        module.register_forward_pre_hook(record("pre"))
        module.register_forward_hook(record("post"))
        module.register_full_backward_pre_hook(record("backward_pre"))
        module.register_full_backward_hook(record("backward"))
        module.register_state_dict_post_hook(lambda *_: seen.append("state"))
        parameter = next(module.parameters())
        parameter.register_hook(record("tensor"))
        parameter.register_post_accumulate_grad_hook(record("accumulated"))
        x.requires_grad_()
        out = module(x)
        out.register_hook(record("out"))
        out.retain_grad()
        out.sum().backward()
        module.state_dict()
        return [repr(s) for s in seen], out.grad

    for build in (linear, network):
        assert_outlives(build, use)


def test_saved_tensor_hooks() -> None:
    """Packing to the host and back, as ``save_on_cpu`` does."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            loss = module(x).sum()
        loss.backward()
        return module

    assert_outlives(network, use)


# Optimizers: torch's own database of every optimizer and its options.


OPTIMIZER_SHORTFALLS = {
    "SparseAdam": "it wants sparse gradients, and fakes are strided",
}
OUTSIDE_SHORTFALLS = {
    ("ASGD", "foreach"): "it makes tensors on a device that C++ named, from none of the fakes",
}
_STATE_FOLLOWS_VALUES = {"LBFGS"}  # its history is as long as its line searches make it
_NEEDS_MATRICES = {"Muon"}


def optimizer_cases() -> list[Any]:
    cases = []
    for info in optim_db:
        inputs = info.optim_inputs_func(device="cpu")
        name = info.optim_cls.__name__
        for number, given in enumerate(inputs):
            cases.append(pytest.param(info, given.kwargs, id=f"{name}-{number}"))
            for implementation in info.supported_impls:
                if implementation in ("foreach", "fused"):
                    kwargs = {**given.kwargs, implementation: True}
                    cases.append(pytest.param(info, kwargs, id=f"{name}-{number}-{implementation}"))
    return cases


def optimize(optimizer_class: Any, kwargs: dict[str, Any], module: nn.Module, x: Any) -> Any:
    kwargs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    only = [p for p in module.parameters() if p.dim() == 2]
    matrices = optimizer_class.__name__ in _NEEDS_MATRICES
    optimizer = optimizer_class(only if matrices else module.parameters(), **kwargs)
    for _ in range(2):
        optimizer.zero_grad()
        loss = module(x).pow(2).mean()
        loss.backward()
        optimizer.step(*([lambda loss=loss: loss] if optimizer_class is torch.optim.LBFGS else []))
    if optimizer_class.__name__ in _STATE_FOLLOWS_VALUES:
        return module
    state = optimizer.state_dict()["state"]
    return module, [sorted(s.items()) for s in state.values()]


@pytest.mark.parametrize(("info", "kwargs"), optimizer_cases())
def test_optimizers(info: Any, kwargs: dict[str, Any]) -> None:
    """Two steps: parameters, gradients and the optimizer's state have eager's metadata."""
    name = info.optim_cls.__name__

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        return optimize(info.optim_cls, kwargs, module, x)

    if name not in OPTIMIZER_SHORTFALLS:
        assert_inside(lambda: use(*linear()))
    if name not in OPTIMIZER_SHORTFALLS and not any(
        (name, option) in OUTSIDE_SHORTFALLS for option in kwargs if kwargs[option] is True
    ):
        assert_same_outside(linear, use)
        return
    with fake_mode():
        made = linear()
    with pytest.raises((torchfake.errors.TorchFakeError, RuntimeError)):
        use(*made)


def test_every_optimizer_is_tried() -> None:
    """A new optimizer in torch.optim must be in the database."""
    public = {
        cls
        for cls in vars(torch.optim).values()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    assert public - {info.optim_cls for info in optim_db} == {torch.optim.Optimizer}


def test_optimizer_state_dict_round_trip() -> None:
    """Saved and loaded into another optimizer over fakes."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        optimizer = torch.optim.AdamW(module.parameters())
        module(x).sum().backward()
        optimizer.step()
        other = torch.optim.AdamW(module.parameters())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.step()
        return [sorted(s.items()) for s in other.state_dict()["state"].values()]

    assert_same_outside(linear, use)


def test_training_helpers() -> None:
    """Clipping, gradient accumulation, schedulers, SWA averages, GradScaler left off."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        average = torch.optim.swa_utils.AveragedModel(module)
        for step in range(4):
            (module(x).sum() / 2).backward()
            if step % 2:
                norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                nn.utils.clip_grad_value_(module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                scheduler.step()
                average.update_parameters(module)
        return module, average, norm

    assert_same_outside(network, use)


# torch.func.


FUNC_USES: dict[str, Callable[..., Any]] = {
    "functional_call": lambda m, x: torch.func.functional_call(
        m, {"weight": x.new_ones(3, 4), "bias": x.new_ones(3)}, (x,)
    ),
    "functional_call_real": lambda m, x: torch.func.functional_call(
        m, {"bias": torch.ones(3)}, (x,)
    ),
    "vmap": lambda m, x: torch.func.vmap(lambda row: m(row).relu())(x),
    "vmap_nested": lambda m, x: torch.func.vmap(torch.func.vmap(torch.sin))(x),
    "vmap_out_dims": lambda m, x: torch.func.vmap(lambda r: r * 2, in_dims=1, out_dims=1)(x),
    "grad": lambda m, x: torch.func.grad(lambda t: m(t).sum())(x),
    "grad_and_value": lambda m, x: torch.func.grad_and_value(lambda t: m(t).sum())(x),
    "per_sample": lambda m, x: torch.func.vmap(
        torch.func.grad(lambda p, row: torch.func.functional_call(m, p, (row,)).sum()),
        in_dims=(None, 0),
    )({name: p.detach() for name, p in m.named_parameters()}, x),
    "jacrev": lambda m, x: torch.func.jacrev(m)(x),
    "jacfwd": lambda m, x: torch.func.jacfwd(m)(x),
    "hessian": lambda m, x: torch.func.hessian(lambda t: m(t).pow(2).sum())(x),
    "vjp": lambda m, x: torch.func.vjp(m, x)[1](x.new_ones(2, 3)),
    "jvp": lambda m, x: torch.func.jvp(m, (x,), (x,)),
    "functionalize": lambda m, x: torch.func.functionalize(lambda t: t.clone().add_(1))(x),
    "stack_module_state": lambda m, x: torch.func.stack_module_state([m, copy.deepcopy(m)]),
    "ensemble": lambda m, x: ensemble([m, copy.deepcopy(m)], x),
}


def ensemble(models: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    parameters, buffers = torch.func.stack_module_state(models)
    return torch.func.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(
        parameters, buffers
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", FUNC_USES)
def test_torch_func(name: str) -> None:
    """Function transforms, after the mode and inside it."""
    assert_outlives(linear, FUNC_USES[name])
    assert_inside(lambda: FUNC_USES[name](*linear()))


# Checkpointing, grad modes.


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpoint(use_reentrant: bool, preserve_rng_state: bool) -> None:
    """Activation checkpointing runs the forward again in backward, outside the mode too."""
    options = {"use_reentrant": use_reentrant, "preserve_rng_state": preserve_rng_state}

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        inner = checkpoint(module[:3], x, **options)
        checkpoint(module[3:], inner, **options).sum().backward()
        return module, x.grad

    assert_outlives(network, use)
    assert_inside(lambda: use(*network()))


def test_checkpoint_sequential() -> None:
    """``checkpoint_sequential`` in segments."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        run = torch.utils.checkpoint.checkpoint_sequential
        run(module, 2, x, use_reentrant=False).sum().backward()
        return module, x.grad

    assert_outlives(network, use)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_grad_modes(context: Any) -> None:
    """Grad modes entered inside, outside and around the fake mode."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        with context():
            out = module(x)
            made = torch.ones_like(x)
            return out, made, out.is_inference(), made.is_inference(), out.detach(), x[0]

    assert_outlives(network, use)
    assert_inside(lambda: use(*network()))
    with context():
        expected = describe(use(*network()))
        with fake_mode():
            made = network()
            inside = describe(use(*made))
        assert inside == expected
        assert describe(use(*made)) == expected


def test_inference_tensors_refuse_what_eager_refuses() -> None:
    """The same error for a write outside inference mode."""
    with torch.inference_mode():
        real = torch.ones(3)
        with fake_mode():
            fake = torch.ones(3)
    for tensor in (real, fake):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            tensor.add_(1)


# DataLoader.


class Rows(torch.utils.data.Dataset):
    """Ten items made in the process that loads them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_dataloader_inside(num_workers: int, shuffle: bool) -> None:
    """Batches are fakes of eager's metadata; a shuffle moves no global generator."""
    given = {"batch_size": 4, "shuffle": shuffle, "num_workers": num_workers}

    def load() -> Any:
        return [list(batch) for batch in torch.utils.data.DataLoader(Rows(), **given)]

    expected = describe(load())
    with generators_stand_still(), fake_mode():
        batches = load()
    assert describe(batches) == expected
    assert all_fake(batches)


def test_dataloader_shuffle_is_a_permutation() -> None:
    """Index draws keep their values: each row once, and the order is eager's for the seed."""
    data = torch.utils.data.TensorDataset(torch.arange(12))

    def order() -> list[int]:
        torch.manual_seed(3)
        loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
        return [i for (batch,) in loader for i in batch.tolist()]

    expected = order()
    with fake_mode():
        assert order() == expected


def test_dataloader_of_fakes_after_the_mode() -> None:
    """A dataset of fakes collates to fakes."""

    def load(x: torch.Tensor) -> Any:
        data = torch.utils.data.TensorDataset(x)
        return [list(batch) for batch in torch.utils.data.DataLoader(data, batch_size=2)]

    assert_outlives(matrix, load)


# torch.nn.init.


def filled(shape: tuple[int, ...] = (6, 4)) -> torch.Tensor:
    return torch.empty(shape)


INITIALIZERS: dict[str, Callable[[], Any]] = {
    "uniform_": lambda: nn.init.uniform_(filled(), -1.0, 2.0),
    "normal_": lambda: nn.init.normal_(filled(), 1.0, 0.2),
    "trunc_normal_": lambda: nn.init.trunc_normal_(filled(), 0.0, 0.5, -1.0, 1.0),
    "constant_": lambda: nn.init.constant_(filled(), 0.3),
    "ones_": lambda: nn.init.ones_(filled()),
    "zeros_": lambda: nn.init.zeros_(filled()),
    "eye_": lambda: nn.init.eye_(filled()),
    "dirac_": lambda: nn.init.dirac_(filled((4, 4, 3)), groups=2),
    "xavier_uniform_": lambda: nn.init.xavier_uniform_(filled(), gain=2.0),
    "xavier_normal_": lambda: nn.init.xavier_normal_(filled()),
    "kaiming_uniform_": lambda: nn.init.kaiming_uniform_(filled(), a=5**0.5),
    "kaiming_normal_": lambda: nn.init.kaiming_normal_(filled((8, 4, 3, 3)), mode="fan_out"),
    "orthogonal_": lambda: (nn.init.orthogonal_(filled()), nn.init.orthogonal_(filled((3, 8)))),
    "sparse_": lambda: nn.init.sparse_(filled(), sparsity=0.3),
    "calculate_gain": lambda: nn.init.calculate_gain("leaky_relu", 0.2),
}
_OLD_NAMES = {
    "uniform", "normal", "constant", "eye", "dirac", "xavier_uniform", "xavier_normal",
    "kaiming_uniform", "kaiming_normal", "orthogonal", "sparse",
}  # fmt: skip
"""Deprecated spellings of the same functions."""


def test_every_initializer_is_tried() -> None:
    """A new public function of torch.nn.init must join the table."""
    public = {
        name
        for name, value in vars(nn.init).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", "") == "torch.nn.init"
        and not isinstance(value, type)
    }
    assert public - _OLD_NAMES == set(INITIALIZERS)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name: str) -> None:
    """Metadata as in eager, inside and after the mode, and the global generator never moves."""
    program = INITIALIZERS[name]
    torch.manual_seed(0)
    expected = describe(program())
    with generators_stand_still(), fake_mode():
        inside = program()
    assert describe(inside) == expected
    assert all_fake(inside)
    with fake_mode():
        made = torch.empty(6, 4)
    assert describe(_on(made, name)) == describe(_on(torch.empty(6, 4), name))
    assert is_fake(made)


def _on(tensor: torch.Tensor, name: str) -> Any:
    """The initializer of that name on a tensor that is already there."""
    function = getattr(nn.init, name)
    if name == "calculate_gain":
        return function("relu")
    if name == "dirac_":
        return function(tensor.view(3, 2, 4))
    if name in ("constant_", "sparse_"):
        return function(tensor, 0.1)
    return function(tensor)


@pytest.mark.parametrize("name", [n for n in INITIALIZERS if n != "calculate_gain"])
def test_initializers_on_fake_cuda(name: str) -> None:
    """On a device that is not there, and in half precision."""
    for dtype in (torch.float32, torch.bfloat16):
        if name == "orthogonal_" and dtype is torch.bfloat16:
            continue  # LAPACK has no bfloat16, in eager either
        with fake_mode(fake_cuda=True), generators_stand_still():
            tensor = torch.empty(6, 4, device="cuda", dtype=dtype)
            _on(tensor, name)
        assert (tensor.device.type, tensor.dtype, tuple(tensor.shape)) == ("cuda", dtype, (6, 4))
        assert is_fake(tensor)

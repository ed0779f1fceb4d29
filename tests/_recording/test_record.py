"""What is done to deferred tensors, in a mode and after it, is recorded."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tests._recording.conftest import live_ops
from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    deferred_mode,
    errors,
    fake_like,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)


def test_operations_after_the_mode() -> None:
    def after(module: nn.Module) -> nn.Module:
        module = module.half().to(torch.bfloat16).to(memory_format=torch.channels_last)
        module.load_state_dict({"bias": torch.arange(4.0)}, strict=False)
        with torch.no_grad():
            module.weight[0] = 3
            module.weight.data.mul_(2)
        nn.init.normal_(module.bias[1:])
        return module

    torch.manual_seed(0)
    eager = after(nn.Conv2d(3, 4, 2))
    drawn = torch.rand(3)
    torch.manual_seed(0)
    module = after(deferred_init(nn.Conv2d, 3, 4, 2))
    assert torch.equal(torch.rand(3), drawn)
    assert is_deferred(module.weight)
    assert_same(eager, materialize_module(module))


def test_autocast_and_inference_mode() -> None:
    def build() -> list[torch.Tensor]:
        a, b = torch.rand(4, 4), torch.rand(4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = a @ b
        with torch.inference_mode():
            return [product, a @ b, a.reshape(-1).clone(), a.to(torch.float64)]

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    for one, other in zip(eager, deferred_init(build), strict=True):
        materialize_tensor(other)
        assert (other.dtype, other.is_inference()) == (one.dtype, one.is_inference())
        assert torch.equal(other, one)


def test_swapped_tensors() -> None:
    with deferred_mode():
        a, b = torch.zeros(2), torch.ones(3)
        torch.utils.swap_tensors(a, b)
    assert materialize_tensor(a).tolist() == [1, 1, 1]
    assert materialize_tensor(b).tolist() == [0, 0]


def test_a_checkpoint_loaded_by_the_constructor(tmp_path: Any) -> None:
    torch.manual_seed(1)
    source = nn.Linear(3, 4)
    torch.save(source.state_dict(), tmp_path / "weights.pt")

    def build() -> nn.Module:
        layer = nn.Linear(3, 4)
        layer.load_state_dict(torch.load(tmp_path / "weights.pt"))
        return layer

    assert_same(source, materialize_module(deferred_init(build)))


def test_a_profiler_and_an_optimizer_in_the_constructor() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(3, 2)
        with torch.profiler.record_function("block"):
            layer(torch.ones(1, 3)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        layer.zero_grad()
        return layer

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    assert_same(eager, materialize_module(deferred_init(build)))


def test_user_code_in_a_backward_pass_after_the_mode() -> None:
    """The mode that watches factories for deferred tensors changes nothing else: autocast works."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            with torch.autocast("cpu", dtype=torch.bfloat16):
                seen.append((x @ x).dtype)
            seen.append(type(torch.ones(1)))
            return grad * 2

    seen: list[Any] = []
    with deferred_mode():
        x = torch.ones(3, 3, requires_grad=True)
    Product.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert seen == [torch.bfloat16, torch.Tensor]
    assert materialize_tensor(x).grad is not None
    assert x.grad.tolist() == [[2.0] * 3] * 3  # type: ignore[union-attr]


# Plain fakes.


def test_a_forward_pass_on_fakes() -> None:
    """It gives plain fakes, and the weights are unchanged."""
    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 3, 4)
    with fake_mode():
        output = layer(torch.randn(30, 3))
    assert is_fake(output)
    assert not is_deferred(output)
    with pytest.raises(errors.MaterializeError, match=r"^(bias|weight) cannot"):
        materialize_module(layer)
    del output
    assert_same(eager, materialize_module(layer))


def test_running_statistics_of_fakes_cannot_be_replayed() -> None:
    module = deferred_init(nn.BatchNorm1d, 3)
    with fake_mode(), torch.no_grad():
        copy.deepcopy(module)(torch.randn(50, 3))
        module(torch.randn(50, 3))
    with pytest.raises(errors.ReplayError, match=r"batch_norm.* do not\s+exist") as caught:
        materialize_module(module)
    assert "running" in str(caught.value) or "float32[3]" in str(caught.value)


def test_a_forward_pass_records_nothing_that_lives_on() -> None:
    module = deferred_init(nn.Sequential, nn.Linear(4, 4))
    layer = deferred_init(nn.Linear, 4, 4)
    with torch.no_grad():
        layer(torch.ones(2, 4))
        before = live_ops()
        for _ in range(20):
            layer(torch.ones(2, 4))
    assert live_ops() == before
    assert not is_deferred(module)


# Other references to deferred memory.


def test_pickling() -> None:
    layer = deferred_init(nn.Linear, 2, 2)
    loaded = pickle.loads(pickle.dumps(layer))
    assert torch.equal(loaded.weight, materialize_module(layer).weight)


def test_a_state_dict_taken_before_materialization() -> None:
    """Its entries are other objects on the same memory, and can be saved."""
    layer = deferred_init(nn.Linear, 2, 2)
    state = layer.state_dict()
    materialize_module(layer)
    loaded = pickle.loads(pickle.dumps(state["weight"]))
    assert torch.equal(loaded, layer.weight)


def test_data_that_is_set_to_a_real_tensor() -> None:
    """``.data = real`` shares memory with it, as in eager mode."""
    real = torch.ones(2, 2)
    layer = deferred_init(nn.Linear, 2, 2)
    layer.weight.data = real
    materialize_module(layer)
    assert layer.weight.data_ptr() == real.data_ptr()


LIKE_A_TENSOR = {
    "ones_like": lambda t: torch.ones_like(t, device="cpu"),
    "zeros_like": lambda t: torch.zeros_like(t, device="cpu", dtype=torch.int64),
    "full_like": lambda t: torch.full_like(t, 2.5, device="cpu"),
    "rand_like": lambda t: torch.rand_like(t, device="cpu"),
    "randn_like": lambda t: torch.randn_like(t, device="cpu"),
    "randint_like": lambda t: torch.randint_like(t, 9, device="cpu"),
    "new_ones": lambda t: t.new_ones(2, 3, device="cpu"),
    "new_zeros": lambda t: t.new_zeros((2,), device="cpu"),
    "new_full": lambda t: t.new_full((2, 2), 1.5, device="cpu"),
}
WITHOUT_VALUES = {
    "meta": lambda: torch.ones(5, 3, 4, device="meta").transpose(0, 1),
    "plain fake": lambda: fake_like(torch.ones(5, 3, 4)).transpose(0, 1),
}


@pytest.mark.parametrize("name", LIKE_A_TENSOR)
@pytest.mark.parametrize("kind", WITHOUT_VALUES)
def test_what_is_like_a_tensor_without_values_is_recorded(name: str, kind: str) -> None:
    """Such operators read the size, strides and dtype of their argument, and no values."""
    make, like = WITHOUT_VALUES[kind], LIKE_A_TENSOR[name]
    torch.manual_seed(0)
    expected = [like(torch.ones(5, 3, 4).transpose(0, 1)) + i for i in range(3)]
    torch.manual_seed(0)
    with deferred_mode():
        given = make()
        recorded = [like(given) + i for i in range(3)]
    for result, eager in zip(map(materialize_tensor, recorded), expected, strict=True):
        assert torch.equal(result, eager)
        assert result.stride() == eager.stride()
        assert result.dtype == eager.dtype


def test_what_is_like_a_meta_tensor_on_meta_has_no_record() -> None:
    with deferred_mode():
        meta = torch.ones(3, device="meta")
        made = torch.zeros_like(meta), torch.rand_like(meta), meta.new_ones(2)
    assert all(t.is_meta and not is_deferred(t) for t in made)


def test_to_empty_of_a_meta_tensor_is_recorded() -> None:
    with deferred_mode():
        module = nn.Linear(3, 4, device="meta").to_empty(device="cpu")
        nn.init.ones_(module.weight), nn.init.zeros_(module.bias)
    materialize_module(module)
    assert module.weight.tolist() == [[1.0] * 3] * 4
    assert module.bias.tolist() == [0.0] * 4


def on_memory_of(real: torch.Tensor) -> torch.Tensor:
    """A deferred tensor on the memory of a real one, as a DataLoader's worker makes for a batch."""
    return torch.empty(0).set_(real.untyped_storage(), 0, (len(real),))


@pytest.mark.parametrize(
    "write",
    [
        lambda out: torch.add(torch.ones(4), 1, out=out),
        lambda out: torch.cat([torch.ones(2), torch.zeros(2)], out=out),
        lambda out: torch.stack([torch.ones(2)] * 2, out=out.resize_(2, 2)),
        lambda out: torch.mv(torch.ones(4, 3), torch.ones(3), out=out),
        lambda out: torch.add(torch.ones(2, 2), 1, out=out.resize_(2, 2)),
    ],
)
def test_out_on_real_memory_is_written(write: Any) -> None:
    """Also of another shape: the fake is resized with the real memory."""
    eager = torch.zeros(4)
    expected = write(on_memory_of(eager))
    real = torch.zeros(4)
    with deferred_mode():
        out = on_memory_of(real)
        found = write(out)
    assert found is out
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())
    assert torch.equal(materialize_tensor(found), expected)
    assert torch.equal(real, eager)


def test_what_is_on_real_memory_can_grow() -> None:
    real = torch.zeros(4)
    with deferred_mode():
        out = on_memory_of(real)
        assert out.resize_(3, 3).shape == (3, 3)
        assert out.fill_(2).sum().item() == 18
    assert real.untyped_storage().nbytes() == 36

"""What is recorded, where, and for how long."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from oracle import assert_same
from torch import nn

from torchfake import (
    _record,
    _replay,
    deferred_init,
    deferred_mode,
    errors,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from torchfake._graph import Op
from torchfake._ops import plan_of


def live_ops() -> int:
    gc.collect()
    return sum(type(obj) is Op for obj in gc.get_objects())


# Recording follows the tensor.


def test_what_is_done_after_the_mode() -> None:
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


def test_optimizer_steps() -> None:
    """Gradients of real losses, and steps on what they say, are recorded like all else."""

    def train(module: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        return optimizer

    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    train(eager)
    torch.manual_seed(0)
    module = deferred_init(nn.Linear, 3, 2)
    train(module)
    assert_same(eager, materialize_module(module))


def test_reads_of_values() -> None:
    """They are eager's, and what depends on them is recorded again."""

    def build() -> nn.Module:
        module = nn.Linear(8, 8)
        scale = module.weight.detach().abs().max().item()
        if module.bias.mean() > 0:
            scale += 1
        with torch.no_grad():
            module.weight.div_(scale)
            module.bias.copy_(torch.tensor(module.weight[0].tolist()))
            module.bias[module.bias > 0.5] = 0
        module.register_buffer("where", (module.weight > 0.5).nonzero())
        module.register_buffer("table", torch.from_numpy(module.bias.detach().numpy() * 2))
        return module

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = deferred_init(build)
    assert is_deferred(module.weight)
    assert_same(eager, materialize_module(module))


def test_values_are_read_from_a_large_module_at_once() -> None:
    """Only what they take is replayed: not the weight beside it."""
    module = deferred_init(nn.Linear, 100_000, 100_000)
    module.bias.data.fill_(2)
    assert module.bias[:3].tolist() == [2, 2, 2]


def test_generators() -> None:
    """Those that are passed move as eager moves them."""

    def build(generator: torch.Generator) -> torch.Tensor:
        tensor = torch.empty(30, 30)
        nn.init.normal_(tensor, generator=generator)
        tensor[:5].uniform_(generator=generator)
        nn.init.trunc_normal_(tensor[5:], generator=generator)
        return tensor

    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    eager, made = build(one), deferred_init(build, other)
    assert torch.equal(one.get_state(), other.get_state())
    assert torch.equal(materialize_tensor(made), eager)


def test_seeds_inside() -> None:
    """Reseeding, forking and saving the state, in the middle of construction."""

    def build() -> list[torch.Tensor]:
        made = [torch.rand(20)]
        state = torch.get_rng_state()
        made.append(torch.rand(20))
        torch.set_rng_state(state)
        made.append(torch.rand(20))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            made.append(torch.randn(7))
        made.append(torch.randperm(9))
        torch.default_generator.manual_seed(8)
        made.append(torch.rand(3))
        return made

    torch.manual_seed(0)
    eager, drawn = build(), torch.rand(2)
    torch.manual_seed(0)
    made = deferred_init(build)
    assert torch.equal(torch.rand(2), drawn)
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert torch.equal(materialize_tensor(other), one)


def test_draws_that_cannot_be_counted() -> None:
    """A large rejection sampler is not run: the generator is elsewhere than eager's, but the values
    of what was recorded match, those of the next deferred model among them.
    """

    def build() -> nn.Module:
        layer = nn.Linear(1500, 1500)
        nn.init.trunc_normal_(layer.weight)
        return layer

    torch.manual_seed(0)
    eager = [build(), nn.Linear(3, 3)]
    torch.manual_seed(0)
    made = [deferred_init(build), deferred_init(nn.Linear, 3, 3)]
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert_same(one, materialize_module(other))
    torch.manual_seed(0)
    assert_same(eager[0], materialize_module(deferred_init(build)))


# Real tensors.


def test_real_tensors_are_held_by_reference() -> None:
    table = torch.arange(4.0)
    with deferred_mode():
        weight = torch.empty(4).copy_(table) * 2
        array = torch.empty(2).copy_(torch.from_numpy(np.ones(2)))
    assert materialize_tensor(array).tolist() == [1, 1]
    table.add_(1)
    with pytest.raises(errors.ReplayError, match=r"aten.copy_.default at .*test_recording.py:\d+"):
        materialize_tensor(weight)
    assert is_deferred(weight)


def test_inference_tensors_are_copied_if_small() -> None:
    with torch.inference_mode():
        small, large = torch.ones(4), torch.ones(100_000)
    with deferred_mode():
        weight = torch.zeros(4) + small
        with pytest.raises(errors.RecordError, match=r"real inference tensor of shape \[100000\]"):
            torch.zeros(100_000) + large
    with torch.inference_mode():
        small.add_(1)
    assert materialize_tensor(weight).tolist() == [1, 1, 1, 1]


def test_a_deferred_tensor_written_into_a_real_one() -> None:
    """Its values are asked for, so they are computed; it stays deferred."""
    real = torch.zeros(3)
    with deferred_mode():
        made = torch.ones(3) * 2
    real.copy_(made)
    assert real.tolist() == [2, 2, 2]
    assert is_deferred(made)


def test_data_that_is_real() -> None:
    """``.data = real`` shares memory with it, as ever."""
    real = torch.ones(2, 2)
    layer = deferred_init(nn.Linear, 2, 2)
    layer.weight.data = real
    materialize_module(layer)
    assert layer.weight.data_ptr() == real.data_ptr()


def test_loading(tmp_path: Any) -> None:
    torch.manual_seed(1)
    source = nn.Linear(3, 4)
    torch.save(source.state_dict(), tmp_path / "weights.pt")

    def build() -> nn.Module:
        layer = nn.Linear(3, 4)
        layer.load_state_dict(torch.load(tmp_path / "weights.pt"))
        return layer

    assert_same(source, materialize_module(deferred_init(build)))


# Plain fakes.


def test_a_forward_pass_on_fakes() -> None:
    """It gives plain fakes, and the weights are as they were."""
    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 3, 4)
    with fake_mode():
        output = layer(torch.randn(2, 3))
    assert is_fake(output)
    assert not is_deferred(output)
    with pytest.raises(errors.MaterializeError, match=r"^(bias|weight) cannot"):
        materialize_module(layer)
    del output
    assert_same(eager, materialize_module(layer))


def test_running_statistics_of_fakes() -> None:
    module = deferred_init(nn.BatchNorm1d, 3)
    with fake_mode(), torch.no_grad():
        copy.deepcopy(module)(torch.randn(5, 3))
        module(torch.randn(5, 3))
    with pytest.raises(errors.ReplayError, match=r"batch_norm.* do not\s+exist") as caught:
        materialize_module(module)
    assert "running" in str(caught.value) or "float32[3]" in str(caught.value)


def test_a_forward_pass_leaves_no_record() -> None:
    module = deferred_init(nn.Sequential, nn.Linear(4, 4))
    layer = deferred_init(nn.Linear, 4, 4)
    with torch.no_grad():
        layer(torch.ones(2, 4))
        before = live_ops()
        for _ in range(20):
            layer(torch.ones(2, 4))
    assert live_ops() == before
    assert not is_deferred(module)


# For how long.


def test_records_of_what_is_gone_are_freed() -> None:
    """Of 100 layers one is kept: with the memory and the operations of one."""
    one = deferred_init(nn.Linear, 8, 8)
    alone = live_ops()
    del one
    none = live_ops()
    layers = deferred_init(lambda: [nn.Linear(8, 8) for _ in range(100)])
    kept = layers[40]
    del layers
    assert live_ops() - none == alone - none
    assert is_deferred(kept)


def test_dead_writes_are_freed() -> None:
    """A fill that is overwritten leaves nothing behind."""
    with deferred_mode():
        weight = torch.empty(10, 10)
        weight.uniform_()
        before = live_ops()
        for _ in range(10):
            weight.normal_()
    assert live_ops() == before


def test_no_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        module = deferred_init(nn.Linear, 4, 4)
        reference = weakref.ref(module.weight._fake_storage.recorded.contents.op)
        del module
        assert reference() is None
    finally:
        gc.enable()


# What cannot be kept.


def test_an_argument_that_cannot_be_kept() -> None:
    """It is refused when it is recorded, and the tensor stays as it was."""
    op = torch.ops.aten.add.Tensor
    with deferred_mode():
        weight = torch.ones(3)
    with pytest.raises(errors.RecordError, match="was given a object, which cannot be kept"):
        _record.record(op, plan_of(op), (weight, object()), {}, lambda *_: None)
    assert materialize_tensor(weight).tolist() == [1, 1, 1]


def test_pickling() -> None:
    layer = deferred_init(nn.Linear, 2, 2)
    with pytest.raises(errors.RecordError, match="Materialize it first"):
        pickle.dumps(layer)
    pickle.dumps(materialize_module(layer))


def test_storages() -> None:
    """Bytes given away and taken back are nobody's; what was made of them is as it was."""
    with deferred_mode():
        tensor = torch.ones(4)
        other = tensor * 2
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(16)
    tensor.fill_(7)
    assert materialize_tensor(other).tolist() == [2, 2, 2, 2]
    assert materialize_tensor(tensor).tolist() == [7, 7, 7, 7]


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


def test_user_code_in_a_backward_pass_outside_of_all_modes() -> None:
    """What watches factories for deferred tensors changes nothing else: autocast is heard of."""

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


# What a review found.


def test_a_draw_that_cannot_be_done_again_spoils_nothing_else() -> None:
    """A generator that cannot be placed begins anew; a model after a seed is eager's."""
    chances = torch.full((10,), 0.5)

    def build() -> torch.Tensor:
        drawn = torch.bernoulli(chances)
        chances.fill_(0.1)
        return drawn

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="not where eager would have left it"):
        made = deferred_init(build)
    with pytest.raises(errors.ReplayError, match="written in place"):
        materialize_tensor(made)
    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    assert_same(eager, materialize_module(deferred_init(nn.Linear, 3, 4)))


def test_an_interrupted_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_op: Op) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(_replay, "finish_draws", interrupted)
        with pytest.raises(KeyboardInterrupt):
            deferred_init(lambda: nn.init.trunc_normal_(torch.empty(50, 50)))
    torch.manual_seed(0)
    assert_same(eager, materialize_module(deferred_init(nn.Linear, 3, 4)))


def test_the_default_generator_by_name() -> None:
    def build() -> list[torch.Tensor]:
        layer = nn.Linear(3, 4)
        nn.init.xavier_uniform_(layer.weight, generator=torch.default_generator)
        return [layer.weight.detach(), torch.rand(3, generator=torch.default_generator)]

    torch.manual_seed(0)
    eager, drawn = build(), torch.rand(2)
    torch.manual_seed(0)
    made = deferred_init(build)
    assert torch.equal(torch.rand(2), drawn)
    for one, other in zip(eager, made, strict=True):
        assert torch.equal(materialize_tensor(other), one)


def test_replay_draws_from_a_generator_of_its_own() -> None:
    """The global one does not move, not even while a rejection sampler runs."""
    states = set()

    def build() -> list[torch.Tensor]:
        return [nn.init.trunc_normal_(torch.empty(40, 40)), nn.init.orthogonal_(torch.empty(9, 9))]

    made = deferred_init(build)
    before = torch.get_rng_state()

    def watch() -> None:
        states.add(bytes(torch.default_generator.get_state().numpy()))

    for op in [t._fake_storage.recorded.contents.op for t in made]:  # type: ignore[attr-defined]
        function = op.func
        op.func = lambda *a, f=function, **k: (watch(), f(*a, **k))[1]
    for tensor in made:
        materialize_tensor(tensor)
    assert states == {bytes(before.numpy())}


def test_writes_that_count_no_version() -> None:
    """Through ``.data``, or past torch: most are found by looking at some elements."""
    source = nn.Linear(3, 4)
    array = np.ones(3)
    layer = deferred_init(nn.Linear, 3, 4)
    layer.load_state_dict(source.state_dict())
    with deferred_mode():
        copied = torch.zeros(3).copy_(torch.from_numpy(array))
    source.weight.data.normal_()
    array[1] = 5
    for tensor in (layer.weight, copied):
        with pytest.raises(errors.ReplayError, match="written in place since"):
            materialize_tensor(tensor)


def test_writes_past_all_operators() -> None:
    with deferred_mode():
        tensors = [torch.ones(4) for _ in range(3)]
        source = torch.zeros(4)
    tensors[0].untyped_storage().fill_(0)
    tensors[1].untyped_storage().copy_(source.untyped_storage())
    tensors[2].untyped_storage()[0] = 1
    for tensor in tensors:
        with pytest.raises(errors.ReplayError, match=r"past all operators, by .*untyped_storage"):
            materialize_tensor(tensor)


def test_storages_that_grow() -> None:
    """What was there stays, and what is new is there to be written."""
    with deferred_mode():
        tensor = torch.ones(4)
    tensor.untyped_storage().resize_(32)
    assert materialize_tensor(tensor).tolist() == [1, 1, 1, 1]
    assert tensor.untyped_storage().nbytes() == 32


def test_tensors_as_arguments_of_a_step() -> None:
    gain, std = torch.tensor(0.5), torch.tensor(0.25)

    def build() -> list[torch.Tensor]:
        drawn = torch.rand(())
        weights = [torch.empty(4, 4) for _ in range(3)]
        nn.init.orthogonal_(weights[0], gain=gain)
        nn.init.orthogonal_(weights[1], gain=drawn)
        nn.init.trunc_normal_(weights[2], std=std)
        return weights

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    made = deferred_init(build)
    gain.fill_(1)
    with pytest.raises(errors.ReplayError, match="orthogonal_ at"):
        materialize_tensor(made[0])
    for one, other in zip(eager[1:], made[1:], strict=True):
        assert torch.equal(materialize_tensor(other), one)


def test_the_profiler_and_optimizers_inside() -> None:
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


def test_optimizer_state_made_while_deferred() -> None:
    """It is right as it is; made real with the module, it is recorded no more."""

    def train(layer: nn.Module, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            layer(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()

    def start(layer: nn.Module) -> Any:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        train(layer, optimizer, 1)
        optimizer.zero_grad()
        return optimizer

    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    expected = start(eager)
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 3, 2)
    optimizer = start(layer)
    materialize_module(layer)
    train(eager, expected, 2)
    train(layer, optimizer, 2)
    assert_same(eager, layer)
    for state in optimizer.state.values():
        for value in state.values():
            materialize_tensor(value)
    before = live_ops()
    train(eager, expected, 5)
    train(layer, optimizer, 5)
    assert live_ops() == before
    assert_same(eager, layer)
    for one, other in zip(expected.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(other["exp_avg_sq"], one["exp_avg_sq"])


def test_uncounted_draws_are_let_go() -> None:
    references = []
    for _ in range(3):
        chances = torch.full((100, 100), 0.5)
        references.append(weakref.ref(chances))
        materialize_tensor(deferred_init(torch.bernoulli, chances))
        del chances
    gc.collect()
    assert [reference() for reference in references[:2]] == [None, None]
    before = live_ops()
    for _ in range(5):
        deferred_init(lambda: [torch.randn(8) for _ in range(10)])
    assert live_ops() <= before + 1


def test_reads_in_a_loop_are_not_computed_over_and_over() -> None:
    """Each replays what was written since the one before."""

    def build() -> torch.Tensor:
        table = torch.zeros(1000)
        for i in range(1, 200):
            table[i] = table[i - 1] + 1
            if table[i] > 1e9:
                break
        return table

    done: list[Any] = []
    original = _replay.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_replay, "execute", lambda *args: (done.append(1), original(*args))[1])
        made = deferred_init(build)
    assert len(done) < 200 * 10
    assert torch.equal(materialize_tensor(made), build())


def test_a_state_dict_taken_before() -> None:
    """Its entries are other objects; they have the memory, and can be saved."""
    layer = deferred_init(nn.Linear, 2, 2)
    state = layer.state_dict()
    materialize_module(layer)
    loaded = pickle.loads(pickle.dumps(state["weight"]))
    assert torch.equal(loaded, layer.weight)

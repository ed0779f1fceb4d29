"""Known values: which fakes answer, what they answer, and that nothing real is ever written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from conftest import generators_stand_still
from torchfake import fake_like, fake_mode, is_fake
from torchfake.errors import RealTensorWriteError, UnknownValueError

REAL = torch.tensor([3, 1, 2])
ARRAY = np.arange(6.0).reshape(2, 3)

HOST_DATA: dict[str, Callable[[], Tensor]] = {
    "python": lambda: torch.tensor([[1, 2], [3, 4]]),
    "number": lambda: torch.tensor(2.5),
    "bfloat16": lambda: torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([1 + 2j]).conj(),
    "numpy": lambda: torch.from_numpy(ARRAY),
    "arange": lambda: torch.arange(5),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "zeros": lambda: torch.zeros(2, 3),
    "ones": lambda: torch.ones(3, dtype=torch.bool),
    "full": lambda: torch.full((2, 2), 7),
    "eye": lambda: torch.eye(3),
    "real": lambda: REAL + 0,
    "computed": lambda: 10000.0 ** -(torch.arange(0, 8, 2) / 8),
    "outer": lambda: torch.outer(torch.arange(3.0), torch.ones(2)).cos(),
    "like": lambda: torch.zeros_like(torch.ones(2), dtype=torch.int64),
    "new": lambda: torch.ones(1).new_full((2,), 3),
    "cat": lambda: torch.cat([torch.arange(2), torch.ones(2, dtype=torch.int64)]),
    "where": lambda: torch.where(torch.arange(4) > 1, torch.arange(4), 0),
    "sort": lambda: torch.tensor([3, 1, 2]).sort(descending=True).indices,
    "cumsum": lambda: torch.arange(4).cumsum(0),
    "tril": lambda: torch.ones(3, 3).tril().bool(),
    "one_hot": lambda: torch.nn.functional.one_hot(torch.arange(3)),
    "view": lambda: torch.arange(6).view(2, 3).t()[1:],
    "expand": lambda: torch.arange(2).expand(3, 2),
    "half": lambda: torch.arange(3).half(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)) * 2,
    "set": lambda: torch.empty(0).set_(torch.arange(4.0), 1, (2,), (1,)),
    "meshgrid": lambda: torch.stack(
        torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
    ),
}


@pytest.mark.parametrize("fake_cuda", [False, True])
@pytest.mark.parametrize("name", HOST_DATA)
def test_host_data_keeps_its_value(name: str, fake_cuda: bool) -> None:
    make = HOST_DATA[name]
    expected = make()
    with fake_mode(fake_cuda=fake_cuda):
        fake = make().cuda() if fake_cuda else make()
        inside = fake.tolist()
    assert is_fake(fake)
    assert fake.is_cuda == fake_cuda
    assert inside == fake.tolist() == expected.tolist()


ASKED: dict[str, Callable[[], Any]] = {
    "item": lambda: torch.arange(3)[1].item(),
    "bool": lambda: [bool(torch.tensor(1)), bool(torch.zeros(()))],
    "if": lambda: "yes" if torch.arange(3).sum() > 2 else "no",
    "int": lambda: int(torch.tensor(3.7)),
    "float": lambda: float(torch.tensor(3)),
    "complex": lambda: complex(torch.tensor(1j)),
    "index": lambda: [10, 20, 30][torch.tensor(1)],
    "range": lambda: list(range(torch.tensor(3))),
    "math": lambda: math.sqrt(torch.tensor(4)),
    "iteration": lambda: [int(t) for t in torch.arange(3)],
    "unpacking": lambda: [t.item() for t in (lambda a, b: (b, a))(*torch.arange(2))],
    "rows": lambda: [row.tolist() for row in torch.arange(4).view(2, 2)],
    "in": lambda: [2 in torch.arange(3), 3 in torch.arange(3)],
    "equal": lambda: torch.equal(torch.arange(3), torch.tensor([0, 1, 2])),
    "equal_real": lambda: torch.equal(torch.tensor([3, 1, 2]), REAL),
    "allclose": lambda: torch.allclose(torch.ones(2), torch.ones(2) + 1e-9),
    "numpy": lambda: torch.arange(6.0).view(2, 3).t().numpy().tolist(),
    "array": lambda: np.asarray(torch.arange(3)).tolist(),
    "ufunc": lambda: np.sqrt(torch.tensor([4.0, 9.0]).numpy()).tolist(),
    "numpy_sum": lambda: float(np.sum(np.asarray(torch.arange(4)))),
    "format": lambda: f"{torch.tensor(0.123):.2f} {torch.tensor(7):03d}",
    "round": lambda: round(torch.tensor(2.6).item()),
    "all": lambda: bool((torch.arange(3) >= 0).all()),
    "max": lambda: max(torch.tensor([1, 5, 3])).item(),
    "sorted": lambda: [int(t) for t in sorted(torch.tensor([3, 1, 2]))],
    "nonzero": lambda: (torch.arange(4) % 2).nonzero().tolist(),
    "where": lambda: torch.where(torch.arange(4) > 1)[0].tolist(),
    "masked_select": lambda: torch.arange(4).masked_select(torch.arange(4) > 1).tolist(),
    "mask": lambda: torch.arange(6).view(2, 3)[torch.tensor([False, True])].tolist(),
    "argwhere": lambda: torch.argwhere(torch.eye(2)).tolist(),
    "unique": lambda: torch.tensor([3, 1, 3]).unique().tolist(),
    "unique_inverse": lambda: [
        t.tolist() for t in torch.tensor([3, 1]).unique(return_inverse=True)
    ],
    "unique_consecutive": lambda: torch.tensor([1, 1, 2]).unique_consecutive().tolist(),
    "bincount": lambda: torch.tensor([0, 2, 2]).bincount().tolist(),
    "repeat_interleave": lambda: torch.arange(2).repeat_interleave(torch.tensor([2, 1])).tolist(),
    "split_by_list": lambda: [
        t.tolist() for t in torch.arange(5).split(torch.tensor([2, 3]).tolist())
    ],
    "tensor_split": lambda: [len(t) for t in torch.arange(5).tensor_split(torch.tensor([1, 3]))],
    "is_nonzero": lambda: torch.is_nonzero(torch.tensor(1)),
    "size_from_value": lambda: tuple(torch.zeros(torch.tensor(2), torch.tensor([3])[0]).shape),
    "slice": lambda: torch.arange(9)[torch.tensor(2) : torch.tensor(5)].tolist(),
    "dlpack": lambda: np.from_dlpack(torch.arange(3)).tolist(),
    "hash_and_is": lambda: len({torch.tensor(1), torch.tensor(1)}),
    "scatter": lambda: torch.zeros(4).scatter(0, torch.tensor([1, 3]), 1.0).tolist(),
}


SHORTFALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "tensor_of_tensors": (
        lambda: torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist(),
        "torch.tensor reads each number inside C++ with Python's dispatch keys off",
    ),
}
"""Questions that eager answers and fakes do not, with the reason. One that works fails here."""


@pytest.mark.parametrize("name", SHORTFALLS)
def test_shortfalls_are_still_there(name: str) -> None:
    program, reason = SHORTFALLS[name]
    program()
    with fake_mode(), pytest.raises(RuntimeError):
        pytest.fail(f"now answered: {program()}; it was not since {reason}")


@pytest.mark.parametrize("name", ASKED)
def test_questions_are_answered_as_in_eager(name: str) -> None:
    expected = ASKED[name]()
    with fake_mode():
        assert ASKED[name]() == expected


def _write_slice(t: Tensor) -> None:
    t[1:] = 7


def _write_mask(t: Tensor) -> None:
    t[t > 2] = 0


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "slice": _write_slice,
    "mask": _write_mask,
    "view": lambda t: t.view(-1).add_(1),
    "transposed": lambda t: t.t().mul_(torch.arange(2)),
    "detach": lambda t: t.detach().zero_(),
    "data": lambda t: t.data.fill_(2),
    "diagonal": lambda t: t.diagonal().copy_(torch.tensor([5, 6])),
    "index_put": lambda t: t.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(9)),
    "out": lambda t: torch.add(t, t, out=t[:]),
    "foreach": lambda t: torch._foreach_add_([t[0], t[1]], 3),
    "chunk": lambda t: t.chunk(2)[1].neg_(),
    "resize": lambda t: t.resize_(2).add_(1),
    "setitem_0": lambda t: t.__setitem__(0, torch.tensor([4, 4, 4])),
    "masked_fill": lambda t: t.masked_fill_(t > 3, -1),
    "index_fill": lambda t: t.index_fill_(1, torch.tensor([0]), 8),
}


@pytest.mark.parametrize("name", WRITES)
def test_values_follow_writes_through_views(name: str) -> None:
    def program() -> list[Any]:
        base = torch.arange(6).view(2, 3)
        column = base[:, 1]
        copy = base.clone()
        WRITES[name](base)
        return [base.tolist(), column.tolist(), copy.tolist(), base._version]

    expected = program()
    with fake_mode():
        assert program() == expected


FORGET: dict[str, Callable[[Tensor], Any]] = {
    "fill": lambda t: t.normal_(),
    "part": lambda t: t[0].uniform_(),
    "add": lambda t: t.add_(torch.randn(3)),
    "copy": lambda t: t.view(-1)[:2].copy_(torch.randn(2)),
    "setitem": lambda t: t.__setitem__((0, 0), torch.randn(3)[0]),
    "out": lambda t: torch.mul(t, torch.randn(3), out=t),
    "foreach": lambda t: torch._foreach_mul_([t], [torch.randn(3)]),
    "index_put": lambda t: t.index_put_((torch.tensor([0]),), torch.randn(3)),
    "data": lambda t: t.data.normal_(),
    "storage_copy": lambda t: t.untyped_storage().copy_(torch.randn(6).untyped_storage()),
    "storage_fill": lambda t: t.untyped_storage().fill_(1),
    "storage_item": lambda t: t.untyped_storage().__setitem__(0, 1),
    "storage_resize": lambda t: t.untyped_storage().resize_(0),
    "growth": lambda t: t.resize_(9),
}


@pytest.mark.parametrize("name", FORGET)
def test_unknown_writes_forget_in_every_view(name: str) -> None:
    with fake_mode():
        base = torch.zeros(2, 3)
        view, copy = base[1], base.clone()
        FORGET[name](base)
        for fake in (base, view):
            with pytest.raises(UnknownValueError):
                fake.tolist()
        assert copy.tolist() == [[0.0] * 3] * 2


def test_a_whole_write_is_known_again() -> None:
    with fake_mode():
        table = torch.randn(2, 3)
        row = table[1]
        table.copy_(torch.arange(6).view(2, 3))
        assert row.tolist() == [3.0, 4.0, 5.0]
        table.normal_()
        table.zero_()
        assert row.tolist() == [0.0, 0.0, 0.0]
        row.normal_()
        table[0].zero_()  # part of what is unknown
        with pytest.raises(UnknownValueError):
            table[0].tolist()


UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "bool": lambda t: bool(t.sum() > 0),
    "float": lambda t: float(t[0]),
    "int": lambda t: int(t[0]),
    "index": lambda t: [1, 2][t[0].long()],
    "range": lambda t: range(t[0].long()),
    "math": lambda t: math.sqrt(t[0]),
    "in": lambda t: 1.0 in t,
    "format": lambda t: f"{t[0]:.2f}",
    "equal": lambda t: torch.equal(t, torch.ones(3)),
    "allclose": lambda t: torch.allclose(t, t),
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 0),
    "mask": lambda t: t[t > 0],
    "masked_select": lambda t: t.masked_select(t > 0),
    "unique": lambda t: t.unique(),
    "repeat_interleave": lambda t: torch.arange(3).repeat_interleave(t.long()),
    "tensor_split": lambda t: torch.arange(3).tensor_split(t.long()),
    "dlpack": np.from_dlpack,
    "max": max,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_values_are_an_error_that_names_the_origin(name: str) -> None:
    with fake_mode():
        weight = torch.randn(3)
        with pytest.raises(UnknownValueError) as caught:
            UNKNOWN[name](weight)
    assert __file__ in str(caught.value)
    assert "torchfake.is_fake(tensor)" in str(caught.value)


def test_a_known_mask_selects_from_unknown_values() -> None:
    with fake_mode():
        x, mask = torch.randn(4, 2), torch.tensor([True, False, True, True])
        assert x[mask].shape == (3, 2)
        assert x.masked_select(mask[:, None]).shape == (6,)
        with pytest.raises(IndexError, match="shape of the mask"):
            x[mask[:3]]


def test_a_mask_that_does_not_fit_is_refused_before_it_is_read() -> None:
    with fake_mode(), pytest.raises(IndexError, match=r"shape of the mask \[2\] at index 0"):
        torch.arange(12).view(3, 4)[torch.tensor([True, True])]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2**16), (torch.int64, 2**20)])
def test_size_limit(dtype: torch.dtype, limit: int) -> None:
    count = limit // dtype.itemsize
    with fake_mode():
        assert torch.arange(count, dtype=dtype)[-1].item() == count - 1
        with pytest.raises(UnknownValueError):
            torch.arange(count + 1, dtype=dtype)[0].item()


def test_numpy_results_are_copies() -> None:
    with fake_mode():
        fake = torch.zeros(3)
        fake.numpy()[0] = 5
        assert fake.tolist() == [0.0, 0.0, 0.0]


def test_arrays_are_never_written() -> None:
    array = np.arange(3.0)
    with fake_mode():
        for fake in (torch.from_numpy(array), torch.as_tensor(array), torch.asarray(array)):
            fake.add_(1)
            assert fake.tolist() == [1.0, 2.0, 3.0]
        buffer = bytearray(b"\x01\x02")
        torch.frombuffer(buffer, dtype=torch.uint8).zero_()
    assert array.tolist() == [0.0, 1.0, 2.0]
    assert buffer == b"\x01\x02"


def _setitem(real: Tensor, fake: Tensor) -> None:
    real[0] = fake[0]


REAL_WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in_place": lambda real, fake: real.add_(fake),
    "number": lambda real, fake: real.mul_(fake[0]),
    "copy": lambda real, fake: real.copy_(fake),
    "setitem": _setitem,
    "index_put": lambda real, fake: real.index_put_((torch.tensor([0]),), fake[0]),
    "index_put_index": lambda real, fake: real.index_put_((fake.long(),), torch.tensor(1.0)),
    "masked_fill": lambda real, fake: real.masked_fill_(fake > 0, 1.0),
    "masked_scatter": lambda real, fake: real.masked_scatter_(real > 0, fake),
    "out": lambda real, fake: torch.add(fake, 1, out=real),
    "out_of_pair": lambda real, fake: torch.max(fake, 0, out=(real, torch.zeros(3).long())),
    "foreach": lambda real, fake: torch._foreach_add_([real], [fake]),
    "foreach_copy": lambda real, fake: torch._foreach_copy_([real], [fake]),
    "foreach_mixed": lambda real, fake: torch._foreach_mul_([fake, real], [fake, fake]),
    "view": lambda real, fake: real[1:].copy_(fake[1:]),
    "detached": lambda real, fake: real.detach().add_(fake),
    "data": lambda real, fake: real.data.add_(fake),
    "scatter": lambda real, fake: real.scatter_(0, torch.tensor([0]), fake),
    "lerp": lambda real, fake: real.lerp_(fake, 0.5),
    "addcmul": lambda real, fake: real.addcmul_(fake, fake),
    "matmul_out": lambda real, fake: torch.matmul(fake[None], fake, out=real),
}
_UNCHANGED = [1.0, 2.0, 3.0]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", REAL_WRITES)
def test_real_tensors_are_never_written(name: str, inside: bool) -> None:
    real = torch.tensor(_UNCHANGED)
    fake = fake_like(torch.zeros(3))
    known = fake_mode()(lambda: torch.zeros(3))()
    for source in (fake, known):
        with pytest.raises(RealTensorWriteError):
            fake_mode()(REAL_WRITES[name])(real, source) if inside else REAL_WRITES[name](
                real, source
            )
    assert real.tolist() == _UNCHANGED
    assert real._version == 0


def test_real_tensors_inside_a_mode_are_read_and_written_as_ever() -> None:
    real = torch.tensor(_UNCHANGED)
    with fake_mode():
        real[1:].zero_()
        assert not is_fake(real[0])
        assert real.tolist() == [1.0, 0.0, 0.0]
        assert is_fake(real + 1)
        assert (real + 1).tolist() == [2.0, 1.0, 1.0]


DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(3),
    "rand_number": lambda: torch.rand([]).item(),
    "randn": lambda: torch.randn(2, 2).normal_(),
    "randint": lambda: torch.randint(9, (3,)).tolist(),
    "randperm": lambda: torch.randperm(5).tolist(),
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)).item(),
    "multinomial": lambda: torch.multinomial(torch.ones(4), 2).tolist(),
    "random_": lambda: torch.zeros(3, dtype=torch.int64).random_(9).tolist(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(5)),
    "init": lambda: torch.nn.Linear(3, 3),
    "trunc_normal": lambda: torch.nn.init.trunc_normal_(torch.empty(3, 3)),
    "rrelu": lambda: torch.nn.functional.rrelu(torch.ones(3), training=True),
    "poisson": lambda: torch.poisson(torch.ones(3)),
    "likes": lambda: [torch.rand_like(torch.ones(2)), torch.randint_like(torch.ones(2), 3)],
    "distribution": lambda: torch.distributions.Categorical(torch.ones(3)).sample().item(),
    "exponential": lambda: torch.ones(3).exponential_(),
    "fork_rng": lambda: torch.random.fork_rng(devices=[]).__enter__(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_global_generator_stands_still(name: str) -> None:
    with generators_stand_still(), fake_mode():
        DRAWS[name]()
        DRAWS[name]()


@pytest.mark.parametrize("name", ["rand_number", "randint", "randperm", "random_", "multinomial"])
def test_known_draws_are_eager_s(name: str) -> None:
    torch.manual_seed(5)
    expected = [DRAWS[name](), DRAWS[name]()]
    torch.manual_seed(5)
    with fake_mode():
        assert [DRAWS[name](), DRAWS[name]()] == expected


def test_passed_generators() -> None:
    generator = torch.Generator().manual_seed(3)
    expected = torch.randint(99, (4,), generator=generator).tolist()
    moved = generator.get_state()
    generator.manual_seed(3)
    with fake_mode():
        torch.randn(5, generator=generator)  # not known, so not drawn
        assert torch.randint(99, (4,), generator=generator).tolist() == expected
    assert torch.equal(generator.get_state(), moved)


def test_layer_drop() -> None:
    def survivors() -> list[int]:
        torch.manual_seed(0)
        return [i for i in range(20) if torch.rand([]) < 0.5]

    expected = survivors()
    with fake_mode():
        assert survivors() == expected


def test_samplers() -> None:
    def program() -> list[Any]:
        torch.manual_seed(1)
        order = list(RandomSampler(range(7)))
        batches = list(BatchSampler(RandomSampler(range(5), replacement=True), 2, False))
        data = TensorDataset(torch.arange(6))
        rows = [batch[0].tolist() for batch in DataLoader(data, batch_size=4, shuffle=True)]
        return [order, batches, rows]

    expected = program()
    with fake_mode():
        result = program()
    assert result == expected


def test_uninitialized_memory() -> None:
    """Integers begin as zeros, so that tables filled piece by piece are known; floats do not."""
    with fake_mode():
        table = torch.empty(3, dtype=torch.int64)
        table[1:] = torch.tensor([4, 5])
        assert table.tolist() == [0, 4, 5]
        for fake in (torch.empty(3), torch.empty_like(torch.ones(2)), torch.ones(1).new_empty(2)):
            with pytest.raises(UnknownValueError):
                fake.tolist()


def test_float_copies_on_other_devices_keep_their_value() -> None:
    with fake_mode(fake_cuda=2):
        fake = torch.linspace(0, 1, 3).to("cuda:1").half().cpu()
        assert fake.tolist() == [0.0, 0.5, 1.0]

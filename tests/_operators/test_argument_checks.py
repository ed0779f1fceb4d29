"""Arguments that eager refuses and meta kernels let pass are refused on fakes too."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import refused_as_in_eager
from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor
from torchfake.errors import RealTensorWriteError, UnsupportedOpError

REFUSED = {
    "half layer, float input": lambda: nn.Linear(3, 4).half()(torch.randn(2, 3)),
    "mv of two dtypes": lambda: torch.mv(torch.randn(2, 3), torch.randn(3).double()),
    "conv of two dtypes": lambda: nn.Conv1d(2, 3, 1)(torch.randn(1, 2, 5).double()),
    "as_strided past the end": lambda: torch.arange(3).as_strided((100_000,), (1,)),
    "as_strided of unknown": lambda: torch.randn(3).as_strided((9,), (1,)),
    "a copy of what is no memory": lambda: torch.as_strided_copy(torch.randn(99), (99,), (1,), 1),
    "written past the end": lambda: torch.as_strided_scatter(
        torch.randn(99), torch.randn(51), (51,), (2,)
    ),
    "written past a row that repeats": lambda: torch.as_strided_scatter(
        torch.randn(99)[:1].expand(80), torch.randn(90), (90,), (1,)
    ),
    "written to rows that need grad": lambda: torch.as_strided_scatter(
        torch.randn(9, 9).t().requires_grad_(), torch.randn(2), (2,), (1,)
    ),
    "one weight for all classes": lambda: nn.functional.nll_loss(
        torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.long), torch.randn(1)
    ),
    "one weight, of lines": lambda: nn.functional.nll_loss(
        torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=torch.long), torch.randn(1)
    ),
    "uniform_ downwards": lambda: torch.empty(4).uniform_(1, -1),
    "normal_ of negative spread": lambda: torch.empty(4).normal_(0, -1),
    "random_ downwards": lambda: torch.empty(4).random_(5, 2),
    "bernoulli_ of two": lambda: torch.empty(4).bernoulli_(2.0),
    "a bool subtracted": lambda: torch.ones(3) - True,
    "subtracted from a bool": lambda: True - torch.ones(3),
    "a bool subtracted in place": lambda: torch.ones(3).sub_(True),
    "alpha is a bool": lambda: torch.ones(3).add(2, alpha=True),
    "alpha is a bool, of tensors": lambda: torch.sub(torch.ones(3), torch.ones(3), alpha=False),
    "alpha is a bool, in place": lambda: torch.ones(100_000).add_(torch.ones(1), alpha=True),
    "embedding of a vector": lambda: nn.functional.embedding(torch.tensor([1]), torch.ones(3)),
    "t_ of three dims": lambda: torch.ones(2, 3, 4).t_(),
    "softmax over no dim": lambda: torch.randn(30, 40).softmax(5),
    "sort along no dim": lambda: torch.randn(30, 40).sort(-3),
    "stable sort along no dim": lambda: torch.randn(30, 40).sort(stable=True, dim=2),
    "a mask of floats": lambda: torch.randn(30, 40).masked_fill_(torch.ones(30, 40), 1.0),
    "rows by floats": lambda: torch.randn(30, 40).index_select(0, torch.ones(2)),
    "added at floats": lambda: torch.randn(3, 40).index_add(0, torch.ones(3), torch.ones(3, 40)),
    "reduced at floats": lambda: torch.randn(30, 40).index_reduce_(
        0, torch.ones(3), torch.randn(3, 40), "amax"
    ),
    "reduced rows of another length": lambda: torch.randn(30, 40).index_reduce(
        0, torch.tensor([1, 2]), torch.randn(2, 39), "mean"
    ),
    "more rows reduced than indices": lambda: torch.randn(30, 40).index_reduce(
        0, torch.tensor([1, 2]), torch.randn(3, 40), "prod"
    ),
    "reduced along no dim": lambda: torch.randn(30, 40).index_reduce(
        2, torch.tensor([1, 2]), torch.randn(2, 40), "amin"
    ),
    "a vector reduced into rows": lambda: torch.randn(30, 40).index_reduce(
        1, torch.tensor([1, 2]), torch.randn(2), "amin"
    ),
    "a number reduced into a vector": lambda: torch.randn(30).index_reduce(
        0, torch.tensor([1]), torch.randn(()), "amin"
    ),
    "indices of floats": lambda: torch.randn(30, 40)[torch.ones(2)],
    "indices of two shapes": lambda: torch.randn(30, 40)[
        torch.tensor([1, 2]), torch.tensor([0] * 3)
    ],
    "values of another shape": lambda: torch.randn(30, 40).index_put_(
        (torch.tensor([0, 1]),), torch.randn(3)
    ),
    "numpy of what needs grad": lambda: torch.ones(3, requires_grad=True).numpy(),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name, mode):
    with pytest.raises(Exception) as eager:  # noqa: PT011 - eager decides which
        REFUSED[name]()
    with mode(), pytest.raises(type(eager.value)):
        REFUSED[name]()


@pytest.mark.parametrize("exponent", [True, False, 1])
def test_powers_of_bools(exponent: int) -> None:
    """A bool to the power of a bool is one."""
    programs: list[Callable[[], Tensor]] = [
        lambda: torch.tensor([True, False]) ** exponent,
        lambda: torch._foreach_pow([torch.tensor([True, False])], exponent)[0],
    ]
    if isinstance(exponent, bool):
        programs.append(lambda: torch.tensor([True, False]).pow_(exponent))
        programs.append(lambda: torch.add(torch.tensor([True]), torch.tensor([True]), alpha=True))
    for program in programs:
        eager = program()
        with fake_mode():
            fake = program()
            assert (fake.dtype, fake.tolist()) == (eager.dtype, eager.tolist())


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_condition_of_bytes() -> None:
    with fake_mode():
        condition = torch.ones(3, dtype=torch.uint8)
        assert torch.where(condition, torch.ones(3), 2).tolist() == [1, 1, 1]
        assert torch.where(condition, torch.ones(300_000, 3), 2).dtype == torch.float32


def other_device() -> dict:
    return {
        "stack": lambda: torch.stack([torch.tensor(1.0), torch.tensor(1.0, device="cuda")]),
        "add_": lambda: torch.tensor(1.0).add_(torch.randn((), device="cuda")),
        "index": lambda: torch.randn(3)[torch.tensor([0], device="cuda")],
    }


@pytest.mark.parametrize("name", other_device())
def test_refused_on_two_devices(name):
    with fake_mode(fake_cuda=True), pytest.raises(RuntimeError, match="on the same device"):
        other_device()[name]()


MIXED: dict[str, Callable[[], Tensor]] = {
    "slice_scatter": lambda: torch.slice_scatter(cuda(4, 4), torch.randn(2, 4), 0, 0, 2),
    "select_scatter": lambda: torch.select_scatter(cuda(4, 4), torch.randn(4), 0, 0),
    "diagonal_scatter": lambda: torch.diagonal_scatter(cuda(4, 4), torch.randn(4)),
    "resize_as_": lambda: cuda(4, 4).resize_as_(torch.randn(2)),
    "a number written at indices": lambda: cuda(4, 4).index_put_(
        (torch.tensor([1]),), torch.tensor(1.0)
    ),
    "add of a number": lambda: cuda(3) + torch.tensor(2.0),
    "ctc_loss of lengths on the CPU": lambda: nn.functional.ctc_loss(
        cuda(5, 2, 4).log_softmax(2),
        torch.ones(2, 3, dtype=torch.long, device="cuda"),
        torch.tensor([5, 5]),
        torch.tensor([3, 2]),
    ),
}


def cuda(*size: int) -> Tensor:
    return torch.zeros(size, device="cuda").normal_()


@pytest.mark.parametrize("name", MIXED)
def test_accepted_on_two_devices(name: str) -> None:
    with fake_mode(fake_cuda=True):
        assert MIXED[name]().is_cuda


NOT_MIXED: dict[str, Callable[[], object]] = {
    "values written at indices": lambda: cuda(4, 4).__setitem__([1, 1], torch.randn(2, 4)),
    "nextafter of a number": lambda: torch.nextafter(cuda(1)[0], torch.tensor(1.0)),
    "logaddexp of a number": lambda: torch.logaddexp(cuda(3), torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", NOT_MIXED)
def test_refused_of_numbers_on_the_cpu(name: str) -> None:
    """Their wrappers in C++ compare devices before TensorIterator is asked."""
    with fake_mode(fake_cuda=True), pytest.raises(RuntimeError, match="on the same device"):
        NOT_MIXED[name]()


def test_indices_into_an_embedding_on_meta() -> None:
    with fake_mode():
        assert nn.Embedding(4, 3, device="meta")(torch.tensor([1, 2])).is_meta


def test_cpu_indices_may_index_cuda():
    with fake_mode(fake_cuda=True):
        assert torch.randn(3, device="cuda")[torch.tensor([0])].is_cuda


@pytest.mark.parametrize("other", [torch.ones(3, dtype=torch.bool), torch.ones(3), 1, True])
def test_bools_are_not_subtracted(other: torch.Tensor | float) -> None:
    """Whether their values are known or not, with eager's message."""
    flags = torch.ones(3, dtype=torch.bool)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        flags.sub_(other)
    with fake_mode():
        unknown = torch.rand(66)[:3].bool()
    for fake in (fake_like(flags), unknown):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            fake.sub_(fake_like(other) if isinstance(other, torch.Tensor) else other)
        assert caught.type is expected.type
        assert str(caught.value) == str(expected.value)


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


def test_real_tensors_inside_a_mode_are_read_and_written_as_in_eager() -> None:
    real = torch.tensor(_UNCHANGED)
    with fake_mode():
        real[1:].zero_()
        assert not is_fake(real[0])
        assert real.tolist() == [1.0, 0.0, 0.0]
        assert is_fake(real + 1)
        assert (real + 1).tolist() == [2.0, 1.0, 1.0]


DRIVERS = {
    "svd": lambda x: torch.linalg.svd(x, driver="gesvd"),
    "svdvals": lambda x: torch.linalg.svdvals(x, driver="gesvd"),
    "lstsq": lambda x: torch.linalg.lstsq(x, x, driver="gesvd"),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", DRIVERS)
def test_drivers_of_other_devices(name: str, mode: Any) -> None:
    refused_as_in_eager(lambda: DRIVERS[name](torch.randn(40, 40)), mode, RuntimeError)
    with fake_mode(fake_cuda=True):
        on_cuda = torch.randn(4, 4, device="cuda")
        assert torch.linalg.svdvals(on_cuda, driver="gesvd").is_cuda
        assert torch.linalg.lstsq(torch.randn(4, 4), torch.randn(4, 4), driver="gelsd").rank == 4


def padded(is_nested: bool = True) -> Tensor:
    """What an encoder gives for sequences of which one is padded at its end."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=is_nested).eval()
    mask = torch.tensor([[False, False, False], [False, True, True]])
    with torch.no_grad():
        result: Tensor = encoder(torch.randn(2, 3, 8), src_key_padding_mask=mask)
    return result


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
def test_nested_tensors_of_an_encoder() -> None:
    expected = padded()
    with fake_mode():
        assert padded().stride() == expected.stride()
    with deferred_mode(), pytest.raises(UnsupportedOpError, match=r"enable_nested_tensor=False"):
        padded()
    torch.manual_seed(0)
    expected = padded(is_nested=False)
    torch.manual_seed(0)
    with deferred_mode():
        recorded = padded(is_nested=False)
    assert torch.equal(materialize_tensor(recorded), expected)


def test_attention_of_a_real_module_without_weights() -> None:
    """The kernel leaves the second result undefined: it has no value that could be known."""
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 3, 8)
    with fake_mode(), torch.no_grad():
        assert attention(x, x, x, need_weights=False)[0].shape == x.shape


NUMBERS_AT_INDICES = """
import torch
from torchfake import fake_mode

with fake_mode(fake_cuda=True):
    tensors = [torch.randn(5), torch.randn(5, device="cuda"), torch.zeros(4, dtype=torch.int64)]
for x in tensors:
    x[x > 0] = 3.0
    x[[0, 1]] = 2
    x[x > 0] = torch.tensor(1)
try:
    tensors[1][tensors[1] > 0] = torch.ones(5)
except RuntimeError as error:
    print(error)
"""


def test_numbers_are_written_at_indices_after_a_mode() -> None:
    """In a process that has deferred nothing, where C++ makes a meta tensor of the number."""
    command = [sys.executable, "-c", NUMBERS_AT_INDICES]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.startswith("Expected all tensors to be on the same device")


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("size", [(), (5,), (3, 5)])
def test_gradients_of_what_is_written_at_indices(within: bool, size: tuple[int, ...]) -> None:
    """Backward writes zeros, which C++ makes: on meta, where the mode is over."""

    def gradients() -> list[Any]:
        values = torch.empty(size, requires_grad=True)
        source = torch.empty(4, 5, requires_grad=True)
        written = source * 1
        written[torch.tensor([0, 2, 3])] = values
        loss = written.sum()
        if within:
            loss.backward()
        return [loss, source, values]

    with fake_mode():
        loss, source, values = gradients()
    if not within:
        loss.backward()
    assert [loss.shape, source.grad.shape, values.grad.shape] == [(), (4, 5), size]

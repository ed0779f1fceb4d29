"""What eager refuses and torch's meta kernels let pass is refused on fakes too."""

import pickle

import pytest
import torch
from torch import nn

from torchfake import _patches, _state, fake_like, fake_mode, is_fake

REFUSED = {
    "half layer, float input": lambda: nn.Linear(3, 4).half()(torch.randn(2, 3)),
    "mv of two dtypes": lambda: torch.mv(torch.randn(2, 3), torch.randn(3).double()),
    "conv of two dtypes": lambda: nn.Conv1d(2, 3, 1)(torch.randn(1, 2, 5).double()),
    "as_strided past the end": lambda: torch.arange(3).as_strided((100_000,), (1,)),
    "as_strided of unknown": lambda: torch.randn(3).as_strided((9,), (1,)),
    "uniform_ downwards": lambda: torch.empty(4).uniform_(1, -1),
    "normal_ of negative spread": lambda: torch.empty(4).normal_(0, -1),
    "random_ downwards": lambda: torch.empty(4).random_(5, 2),
    "bernoulli_ of two": lambda: torch.empty(4).bernoulli_(2.0),
    "numpy of what needs grad": lambda: torch.ones(3, requires_grad=True).numpy(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name):
    with pytest.raises(Exception) as eager:  # noqa: PT011 - eager decides which
        REFUSED[name]()
    with fake_mode(), pytest.raises(type(eager.value)):
        REFUSED[name]()


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


def test_cpu_indices_may_index_cuda():
    with fake_mode(fake_cuda=True):
        assert torch.randn(3, device="cuda")[torch.tensor([0])].is_cuda


def test_a_storage_resized_away_stays_so():
    with fake_mode():
        x = torch.randn(4)
        x.untyped_storage().resize_(0)
        assert (x.view(2, 2) + 1).shape == (2, 2)
        assert x.untyped_storage().nbytes() == 0


def out_of(function, *args):
    out = torch.zeros(2, 1, dtype=torch.int64)
    assert function(*args, out=out) is out
    return out.tolist()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_operators_that_read_values():
    def program():
        x = torch.tensor([1, 0, 1])
        return out_of(torch.nonzero, x), out_of(torch.masked_select, x, x > 0)

    wanted = program()
    with fake_mode():
        assert program() == wanted


def test_reseeding_rewinds_known_draws():
    def program():
        torch.manual_seed(0)
        first = torch.randint(100, (3,)).tolist()
        state = torch.get_rng_state()
        second = torch.randint(100, (3,)).tolist()
        torch.manual_seed(0)
        return first, second, torch.randint(100, (3,)).tolist(), len(state)

    wanted = program()
    with fake_mode():
        assert program() == wanted


def test_draws_of_one_thread_go_on_after_the_mode():
    with fake_mode():
        x = torch.zeros(3, dtype=torch.int64)
    draws = {tuple(torch.randint_like(x, 0, 1000).tolist()) for _ in range(4)}
    assert len(draws) == 4


def test_lazy_layers_are_pickled():
    with fake_mode():
        layer = pickle.loads(pickle.dumps(nn.LazyLinear(3)))
        assert layer(torch.randn(2, 5)).shape == (2, 3)
    assert is_fake(layer)


def test_checks_of_torchs_own_are_passed():
    with fake_mode():
        torch.distributions.Beta(torch.rand(3), torch.rand(3)).sample()
        with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
            torch.randn(3, requires_grad=True).square().sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_transformer_encoder_with_a_padding_mask():
    def program():
        layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        mask = torch.zeros(2, 3, dtype=torch.bool)
        with torch.no_grad():
            return nn.TransformerEncoder(layer, 1).eval()(torch.randn(2, 3, 8), None, mask).shape

    wanted = program()
    with fake_mode():
        assert program() == wanted


def test_generator_functions_are_refused():
    def numbers():
        yield torch.ones(1)

    with pytest.raises(TypeError, match="generator function numbers"):
        fake_mode()(numbers)


@pytest.mark.parametrize("value", [1.5, None, [1]])
def test_fake_cuda_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="a number of devices"):
        fake_mode(fake_cuda=value)


def test_interrupted_while_entering(monkeypatch):
    """Ctrl-C between two replacements: none is left, and no mode is on."""
    load = torch.load

    def interrupted(original):
        raise KeyboardInterrupt

    patches = _patches.Patch(torch, "save", interrupted)
    from torchfake import _patch_devices

    monkeypatch.setattr(_patch_devices, "PATCHES", [patches])
    with pytest.raises(KeyboardInterrupt):
        fake_mode().__enter__()
    assert torch.load is load
    assert _state.current() is None
    monkeypatch.undo()
    with fake_mode():
        assert is_fake(torch.ones(1))
    assert not is_fake(torch.ones(1))


@pytest.mark.parametrize("other", [torch.ones(3, dtype=torch.bool), torch.ones(3), 1, True])
def test_bools_are_not_subtracted(other: torch.Tensor | float) -> None:
    """Whether their values are known or not, in eager's words."""
    flags = torch.ones(3, dtype=torch.bool)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        flags.sub_(other)
    with fake_mode():
        unknown = torch.rand(3).bool()
    for fake in (fake_like(flags), unknown):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            fake.sub_(fake_like(other) if isinstance(other, torch.Tensor) else other)
        assert caught.type is expected.type
        assert str(caught.value) == str(expected.value)

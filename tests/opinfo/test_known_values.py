"""Known values of fakes: the bits of eager, forward and backward, or unknown.

Operators that once had other bits in the suite; with ``--all-samples`` (``nox -s recorded``) all.
"""

import pytest
import torch

from tests.opinfo.harness import OPS, grouped
from tests.opinfo.known import tally
from tests.opinfo.shortfalls import NONDETERMINISTIC, OTHER_BITS
from torchfake import deferred_mode, fake_mode

ONCE_OTHERS = (
    "linalg.cond", "linalg.eigvalsh", "linalg.matrix_norm", "linalg.pinv", "linalg.svdvals",
    "nn.functional.mish", "norm.nuc", "pinverse", "prod", "cumprod",
)  # fmt: skip


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_known_values_are_those_of_eager(dtype, backward, request):
    is_full = request.config.getoption("--all-samples")
    num_known, new = 0, {}
    for name in OPS if is_full else ONCE_OTHERS:
        found = tally(OPS[name], dtype, backward)
        num_known += found.num_samples
        if found.failures and OPS[name].name not in NONDETERMINISTIC | OTHER_BITS.keys():
            new[name] = grouped(found.failures)
    print(f"\n{num_known} values")
    assert num_known > 100
    assert not new, f"new failures: {new}"


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_composite_that_conjugates_inside(mode):
    """Where C++ has passed the keys that resolve conjugate views."""
    numbers = [[1 + 2j, 3 - 1j], [0.5j, 2 + 1j], [1j, 4 + 0j]]
    expected = torch.linalg.pinv(torch.tensor(numbers))
    with mode():
        inverse = torch.linalg.pinv(torch.tensor(numbers))
        assert inverse.tolist() == expected.tolist()
        assert inverse.real.sum().item() == expected.real.sum().item()
        assert [row[0].item() for row in inverse] == [row[0].item() for row in expected]


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize(
    "function",
    [torch.nn.functional.mish, torch.prod, lambda x: x.prod(1).sum(), torch.linalg.cond,
     torch.linalg.svdvals, lambda x: torch.linalg.eigvalsh(x @ x.T)],
    ids=["mish", "prod", "prod of rows", "cond", "svdvals", "eigvalsh"],
)  # fmt: skip
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_values_and_gradients_that_c_computes_otherwise_for_subclasses(
    mode, function, needs_gradient
):
    def run():
        x = (torch.arange(1.0, 10.0).sqrt().reshape(3, 3) / 7).requires_grad_(needs_gradient)
        result = function(x)
        grads = torch.autograd.grad(result.sum(), x) if needs_gradient else ()
        return [each.detach().tolist() for each in (result, *grads)]

    expected = run()
    with mode():
        assert run() == expected


def test_the_operator_of_a_gradient_called_directly():
    def run():
        return torch.ops.aten.mish_backward(torch.ones(2, 3), torch.full((2, 3), 0.5)).tolist()

    expected = run()
    with fake_mode():
        assert run() == expected
        with torch.no_grad():
            assert run() == expected

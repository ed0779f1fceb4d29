"""Sums of gradients that meet at one tensor lie as those that the engine of autograd adds up."""

import pytest
import torch
from torch._dynamo.exc import UncapturedHigherOrderOpError
from torch.nn import functional

from tests.strides.arrangements import LAYOUTS
from tests.strides.calls import Case
from tests.strides.outcomes import difference
from torchfake import deferred_mode, fake_mode
from torchfake._cache import cache
from torchfake._torch.backends import CLAMP_COMPARES_IN_PLACE

USES = {
    "a function": torch.relu,
    "the tensor itself": lambda x: x,
    "a view": lambda x: x.transpose(1, 2).transpose(1, 2),
    "a copy": lambda x: x.contiguous(memory_format=torch.channels_last),
    "parts": lambda x: torch.cat([x[:, :1], x[:, 1:]], 1),
    "more uses": lambda x: x * x.sigmoid(),
    "a mean": lambda x: x - x.mean(1, keepdim=True),
}
MEET = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "cat": lambda a, b: torch.cat([a, b], 1),
    "stack": lambda a, b: torch.stack([a, b]),
    "attention": lambda a, b: functional.scaled_dot_product_attention(a, b, a),
}


def program(meet, first, second):
    return lambda x: MEET[meet](USES[first](x), USES[second](x))


@pytest.mark.parametrize("meet", MEET)
@pytest.mark.parametrize("size", [(2, 1, 3, 1), (1, 2, 1, 4), (2, 3, 1, 1)])
@pytest.mark.filterwarnings("ignore")
def test_sums_of_two_uses(meet, size):
    for i, first in enumerate(USES):
        for j, second in enumerate(USES):
            layout = list(LAYOUTS)[(3 * i + j) % len(LAYOUTS)]
            if meet == "attention" and (i + j) % 3:
                continue
            x = LAYOUTS[layout](torch.rand(size)).detach().requires_grad_()
            function = program(meet, first, second)
            case = Case(meet, 0, "", layout, lambda f=function: f, ((x,), {}))
            assert difference(case) is None, (first, second, layout)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_gradient_that_the_program_holds_is_not_added_to(mode):
    def strides(seed):
        x = torch.rand(2, 3, 1, 1, requires_grad=True)
        out = x + functional.pixel_shuffle(x.repeat(1, 1, 1, 1), 1)
        return torch.autograd.grad(out, x, seed(out))[0].stride()

    def held(out):
        return torch.ones(3, 2, 1, 1).transpose(0, 1).as_strided(out.shape, (1, 2, 7, 9))

    for seed in (held, torch.ones_like):
        with mode():
            found = strides(seed)
        assert found == strides(seed)


def of_two_products():
    x = torch.ones(2, 1, 3, requires_grad=True)
    product = torch.einsum("...i,...i->...", x, x)
    (x.sum() + product.sum()).backward()
    return x.grad.stride()


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_what_torchfake_holds_of_a_call_does_not_count(mode):
    """Whether the call is recorded, and whether a rule has led to it: see `_cache/rules`."""
    for _ in range(3):
        with mode():
            found = of_two_products()
        assert found == of_two_products()


def test_sums_after_a_cond_that_failed():
    """After that, torch holds one more reference to each tensor of a call in a mode."""
    with pytest.raises(UncapturedHigherOrderOpError):
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x[0], (torch.ones(3),))
    with fake_mode():
        found = of_two_products()
    assert found == of_two_products()


def test_gradients_of_variance_and_mean_are_added_by_their_own_node():
    for function in (torch.var_mean, torch.std_mean):
        for layout, arrange in LAYOUTS.items():
            x = arrange(torch.rand(3, 4, 1)).detach().requires_grad_()
            case = Case("", 0, "", layout, lambda f=function: f, ((x,), {}))
            assert difference(case) is None, layout


IN_PLACE = {
    "clamp": lambda x, y: x.clamp(0.2, 0.5),
    "cumprod": lambda x, y: x.cumprod(1),
    "binary_cross_entropy_with_logits": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y.detach()
    ),
    "with weights": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y.detach(), pos_weight=torch.ones(x.shape[-1])
    ),
}
if CLAMP_COMPARES_IN_PLACE:
    IN_PLACE["clamp by tensors"] = lambda x, y: x.clamp(y, y + 1)


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("size", [(2, 3, 1, 1), (1, 2, 1, 4), (2, 2, 0, 1)])
def test_gradients_that_are_computed_in_place(name, size):
    for layout, arrange in LAYOUTS.items():
        x, y = (arrange(torch.rand(size) + 0.1).detach().requires_grad_() for _ in range(2))
        case = Case(name, 0, "", layout, lambda: IN_PLACE[name], ((x, y), {}))
        assert difference(case) is None, layout


def test_the_same_sum_of_the_program_and_of_the_engine():
    """The engine adds in place where the program's sum is new, whichever of the two came first."""

    def of_engine():
        x = torch.rand(2, 3, 1, 1, requires_grad=True)
        seed = torch.rand(2, 3, 1, 1)
        out = x + functional.pixel_shuffle(x.repeat(1, 1, 1, 1), 1)
        return torch.autograd.grad(out, x, seed.as_strided(out.shape, (3, 1, 7, 9)))[0].stride()

    def of_program():
        first = torch.rand(2, 3, 1, 1).as_strided((2, 3, 1, 1), (3, 1, 7, 9))
        return (first + torch.rand(2, 3, 1, 1)).stride()

    expected = of_engine(), of_program()
    for order in ((of_engine, of_program), (of_program, of_engine)):
        cache.clear()
        with fake_mode():
            found = {each: each() for each in (*order, *order)}
        assert (found[of_engine], found[of_program]) == expected

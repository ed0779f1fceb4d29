"""A tensor to which a product is added has a size that eager expands to the product's."""

import pytest
import torch
from torch.nn import functional

from torchfake import deferred_mode, fake_mode


def outcome(function, *shapes):
    try:
        result = function(*map(torch.ones, shapes))
        return result.shape, result.stride()
    except Exception as error:
        return type(error), str(error)


PRODUCTS = {
    "linear": lambda bias, a, b: functional.linear(a, b.mT, bias),
    "addmm": torch.addmm,
    "addmm out": lambda bias, a, b: torch.addmm(bias, a, b, out=torch.ones(1)),
    "addmv": lambda bias, a, b: torch.addmv(bias, a, torch.ones(b.shape[0])),
    "addmv beta": lambda bias, a, b: torch.addmv(bias, a, torch.ones(b.shape[0]), beta=0),
    "addmv vec": lambda bias, a, b: torch.addmv(bias, a, torch.ones(2)),
    "addbmm": lambda bias, a, b: torch.addbmm(bias, a.expand(2, *a.shape), b.expand(2, *b.shape)),
    "baddbmm": lambda bias, a, b: torch.baddbmm(bias, a.expand(2, *a.shape), b.expand(2, *b.shape)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_products_expand_what_is_added(name):
    for rows, inner, columns in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 4), (0, 0, 0), (2, 3, 4)):
        for shape in ((), (1,), (2,), (4,), (0,), (2, 1), (2, 4), (0, 4), (5, 5), (1, 2, 4)):
            shapes = shape, (rows, inner), (inner, columns)
            expected = outcome(PRODUCTS[name], *shapes)
            with fake_mode():
                assert outcome(PRODUCTS[name], *shapes) == expected, shapes


WRITTEN = {
    "addmm_": lambda own, a, b: own.addmm_(a, b),
    "addmv_": lambda own, a, b: own.addmv_(a, torch.ones(b.shape[0])),
    "addr_": lambda own, a, b: own.addr_(torch.ones(a.shape[0]), torch.ones(b.shape[1])),
    "baddbmm_": lambda own, a, b: own.baddbmm_(a.expand(2, *a.shape), b.expand(2, *b.shape)),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("scale", [1, 150])
def test_what_is_written_has_the_size_of_the_product(name, scale):
    for rows, columns in ((1, 1), (1, 4 * scale), (2, 4 * scale)):
        for shape in ((), (1,), (2,), (3,), (1, 1), (2, 1), (1, 4), (2, 4), (1, 2, 4), (2, 2, 4)):
            own = tuple(n * scale if n > 2 else n for n in shape)
            shapes = own, (rows, 3), (3, columns)
            expected = outcome(WRITTEN[name], *shapes)
            for mode in (fake_mode, deferred_mode):
                with mode():
                    assert outcome(WRITTEN[name], *shapes) == expected, shapes

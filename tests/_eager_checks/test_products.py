"""A tensor to which a product is added has a size that eager expands to the product's."""

import pytest
import torch
from torch.nn import functional

from torchfake import fake_mode


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

"""What ``materialize_module`` leaves fake is named in one warning."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from torchfake import deferred_init, fake_mode, is_fake, materialize_module


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer: Any = nn.Linear(2, 2)
        self.held = torch.randn(3)


def test_plain_fakes_are_named_in_one_warning() -> None:
    module = deferred_init(Holder)
    with fake_mode():
        module.seen = {"both": [torch.ones(2), torch.ones(3)]}
        module.layer.table = torch.ones(3)
    with pytest.warns(UserWarning, match=r"^seen, layer\.table: .* never recorded") as warned:
        materialize_module(module)
    assert len(warned) == 1
    assert is_fake(module.layer.table)
    assert not is_fake(module.held)


class Listed(nn.Module):
    """A module whose class keeps a table, filled by the first, and lists all modules."""

    every: ClassVar[list[nn.Module]] = []
    tables: ClassVar[dict[str, Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.tables.setdefault("positions", torch.arange(3))
        self.every.append(self)


@pytest.fixture
def _listed() -> Iterator[None]:
    yield
    Listed.every.clear()
    Listed.tables.clear()


@pytest.mark.usefixtures("_listed")
def test_what_a_class_keeps_is_real_but_for_the_modules_that_it_lists() -> None:
    first, second = deferred_init(Listed), deferred_init(Listed)
    with pytest.warns(
        UserWarning, match=r"^Listed\.every: held by a class.*stay fake.*call"
    ) as told:
        materialize_module(first)
    assert len(told) == 1
    assert Listed.tables["positions"].tolist() == [0, 1, 2]
    assert is_fake(second)
    materialize_module(second)
    materialize_module(deferred_init(Listed))


@pytest.mark.usefixtures("_listed")
def test_a_plain_fake_that_a_class_keeps_is_named() -> None:
    with fake_mode():
        Listed.tables["mask"] = torch.ones(3)
    with pytest.warns(UserWarning, match=r"^Listed\.tables: attributes .* classes .* stay fake"):
        materialize_module(deferred_init(Listed))


def test_storages_that_stay_fake_are_named() -> None:
    module = deferred_init(Holder)
    module.kept = [module.layer.weight.untyped_storage()]
    with pytest.warns(UserWarning, match=r"^kept: storages .* stay fake\. Get them again"):
        materialize_module(module)

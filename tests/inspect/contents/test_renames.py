"""Prefixes of names that one of two models has renamed."""

from __future__ import annotations

import pytest
from torch import nn

from tests.inspect.compared_models import SMALL, stack
from torchfake import fake_mode
from torchfake.inspect.contents.diff import diff
from torchfake.inspect.contents.renames import find_renamed_prefix

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("BertModel", "BertForMaskedLM", "are in B behind 'bert.', alike but for that"),
        ("BertForMaskedLM", "BertModel", "that only B has are in A behind 'bert.'"),
        ("BertForMaskedLM", "RobertaForMaskedLM", "with 'roberta.' for 'bert.', alike"),
    ],
)
def test_what_was_renamed(a: str, b: str, said: str) -> None:
    small = {**SMALL, "max_position_embeddings": 40}
    found = []
    with fake_mode():
        for name in (a, b):
            model_class = getattr(transformers, name)
            found.append(model_class(model_class.config_class(**small)))
    assert any(said in note for note in diff(*found).notes)


def test_what_was_renamed_and_is_not_alike() -> None:
    inner, outer = stack(8), nn.ModuleDict({"model": stack(16)})
    (note,) = diff(inner, outer).notes
    assert note == "all 14 names that only A has are in B behind 'model.', 11 of them not alike"
    assert diff(stack(), nn.LSTM(2, 2)).notes == ()


def test_names_with_nothing_in_common_are_not_renamed() -> None:
    assert find_renamed_prefix([], []) is None
    assert find_renamed_prefix(["a.w"], ["b.w"]) is None
    assert find_renamed_prefix(["a.w", "a.b"], ["b.w", "b.b"]) == (
        "a.",
        "b.",
        (("a.w", "b.w"), ("a.b", "b.b")),
    )

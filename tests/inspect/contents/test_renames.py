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
        ("BertModel", "BertForMaskedLM", "; 55 alike, with the prefix 'bert.' of names in B"),
        ("BertForMaskedLM", "BertModel", "; 55 alike, with the prefix 'bert.' of names in A"),
        (
            "BertForMaskedLM",
            "RobertaForMaskedLM",
            ", with the prefix 'roberta.' of names in B, 'bert.' in A",
        ),
    ],
)
def test_what_was_renamed(a: str, b: str, said: str) -> None:
    small = {**SMALL, "max_position_embeddings": 40}
    found = []
    with fake_mode():
        for name in (a, b):
            model_class = getattr(transformers, name)
            found.append(model_class(model_class.config_class(**small)))
    compared = diff(*found)
    assert compared.headline.endswith(said)
    assert str(compared).splitlines()[0] == compared.headline
    renamed = {name for pair in compared.prefix.pairs for name in pair}
    assert not renamed & {tensor.name for tensor in (*compared.only_a, *compared.only_b)}


def test_what_was_renamed_and_is_not_alike() -> None:
    inner, outer = stack(8), nn.ModuleDict({"model": stack(16)})
    found = diff(inner, outer)
    assert found.headline == (
        "different: 11 tensors of another shape; 3 alike, with the prefix 'model.' of names in B"
    )
    assert (found.only_a, found.only_b) == ((), ())
    assert {change.name for change in found.changed} <= {
        name for name, _ in inner.named_parameters()
    } | {name for name, _ in inner.named_buffers()}
    assert diff(stack(), nn.LSTM(2, 2)).prefix is None


def test_what_differs_in_nothing_but_a_prefix() -> None:
    for outer, prefix in (("model", "model."), ("_orig_mod", "_orig_mod."), ("module", "module.")):
        found = diff(stack(), nn.ModuleDict({outer: stack()}))
        assert found.headline == (
            f"identical but for the prefix {prefix!r} of names in B: 14 tensors"
        )
        assert not found.is_equal
        assert found.to_dict()["prefix"] == {"a": "", "b": prefix, "names": 14}


def test_what_is_identical() -> None:
    found = diff(stack(), stack())
    assert found.headline == "identical: 14 tensors, 297 values, 1.19 kB"
    assert found.to_dict()["headline"] == found.headline


def test_names_with_nothing_in_common_are_not_renamed() -> None:
    assert find_renamed_prefix([], []) is None
    assert find_renamed_prefix(["a.w"], ["b.w"]) is None
    assert find_renamed_prefix(["a.w", "a.b"], ["b.w", "b.b"]) == (
        "a.",
        "b.",
        (("a.w", "b.w"), ("a.b", "b.b")),
    )

"""Layers that are alike are run once, and nothing of what is found depends on that."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from tests.distributed.serving.layouts import work, work_of
from torchfake.distributed.parallelize.tensor_parallel import without_numbers
from torchfake.distributed.passes.rank_record import RankWork

FAMILIES = (
    "llama, tied and biased",
    "qwen moe, ep and tp",
    "deepseek, ep",
    "gemma, tp",
    "jamba, ep",
    "bamba, tp",
    "qwen vl, tp",
)

families = pytest.mark.parametrize("name", FAMILIES)


def both(name: str) -> tuple[RankWork, RankWork]:
    cut, whole = work_of(name), work_of(name, is_whole=True)
    assert len(cut.layers) == len(whole.layers) == 6
    return cut, whole


def kinds(work: RankWork, of: Any) -> Counter[Any]:
    return Counter(each for part in work.parts for each in of(part))


@families
def test_the_weights_are_those_of_all_layers(name: str) -> None:
    def weights(part: Any) -> list[Any]:
        return [(without_numbers(w.name), w.shape, w.itemsize, w.is_parameter) for w in part.held]

    cut, whole = both(name)
    assert kinds(cut, weights) == kinds(whole, weights)


@families
def test_the_products_are_those_of_all_layers(name: str) -> None:
    def products(part: Any) -> list[Any]:
        found = part.products
        return [(without_numbers(p.weight.name), p.rows, p.of_sequences, p.ranks) for p in found]

    cut, whole = both(name)
    assert kinds(cut, products) == kinds(whole, products)


@families
def test_the_pages_are_those_of_all_layers(name: str) -> None:
    def pages(part: Any) -> list[Any]:
        return [(p.kind, p.token_bytes, p.state_bytes, p.window) for p in part.pages]

    cut, whole = both(name)
    assert kinds(cut, pages) == kinds(whole, pages)


@families
def test_the_messages_are_those_of_all_layers(name: str) -> None:
    cut, whole = both(name)
    assert kinds(cut, lambda part: part.sent) == kinds(whole, lambda part: part.sent)


@families
def test_other_operators_are_those_of_all_layers(name: str) -> None:
    cut, whole = both(name)
    for field in ("token_bytes", "token_flops", "pair_flops"):
        found = sum(getattr(part, field) for part in cut.parts)
        assert found == pytest.approx(sum(getattr(part, field) for part in whole.parts)), field


@families
def test_the_peak_of_activations_is_that_of_all_layers(name: str) -> None:
    cut, whole = both(name)
    assert cut.activation_bytes == whole.activation_bytes


def test_the_decoder_is_the_list_that_is_run_and_not_the_longest() -> None:
    found = work_of("qwen vl, tp")
    assert len(found.towers) == 8
    assert all(layer.pages for layer in found.layers)


def test_a_model_that_looks_up_its_last_layer_is_run_whole() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    class LookingUp(LlamaForCausalLM):
        @functools.wraps(LlamaForCausalLM.forward)  # whose arguments are looked at
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            assert self.model.layers[self.config.num_hidden_layers - 1]
            return super().forward(*args, **kwargs)

    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=6, vocab_size=100)
    plain = work(lambda: LlamaForCausalLM(config), None)
    found = work(lambda: LookingUp(config), None)
    assert len(found.layers) == 6
    assert [w.num_bytes for w in found.weights] == [w.num_bytes for w in plain.weights]

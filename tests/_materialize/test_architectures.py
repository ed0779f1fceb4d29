"""Architectures of transformers: materialized in any order and in parts, they have eager's bits."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.oracle import (
    ORDERS,
    Order,
    assert_equals_eager,
    assert_same,
    at_once,
    one_at_a_time,
    reversed_one_at_a_time,
    submodules_reversed,
)
from torchfake import deferred_init, materialize_module

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
transformers = pytest.importorskip("transformers")

from tests._materialize.architectures import builder  # noqa: E402

TEXT = (
    "albert bart bert bigbird_pegasus biogpt blenderbot bloom canine codegen cohere deberta-v2 "
    "distilbert electra falcon fnet gemma2 gpt2 gpt_neo gpt_neox gptj led llama longformer m2m_100 "
    "mobilebert mpnet mpt mt5 olmo opt qwen2 qwen3 reformer roberta roformer t5 xglm xlnet xmod "
    "yoso"
)
MIXTURES = "deepseek_v3 gpt_oss granitemoe mixtral qwen2_moe switch_transformers"
STATE_SPACES = "bamba falcon_mamba mamba recurrent_gemma rwkv zamba"
VISION = (
    "beit bit convnext convnextv2 deit dinov2 hiera mobilevit resnet segformer swin swinv2 vit "
    "vit_mae vitdet vivit yolos"
)
SPEECH = "audio-spectrogram-transformer hubert sew-d speech_to_text vits wav2vec2 wavlm whisper"
TOGETHER = "blip clap clip flava kosmos-2 layoutlmv3 siglip vilt"
ARCHITECTURES = " ".join((TEXT, MIXTURES, STATE_SPACES, VISION, SPEECH, TOGETHER)).split()


def test_at_least_sixty_architectures() -> None:
    """Each once."""
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 60


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers(name: str, request: pytest.FixtureRequest) -> None:
    """Whole, in the order it was made in, or one parameter at a time in the other; with
    ``--all-samples`` both.
    """
    orders: list[Order] = [at_once, reversed_one_at_a_time]
    if not request.config.getoption("--all-samples"):
        orders = [orders[ARCHITECTURES.index(name) % 2]]
    assert_equals_eager(builder(name), orders, counted=False)


@pytest.mark.parametrize(
    "name", ["bert", "falcon_mamba", "gpt_oss", "swin", "t5", "vit", "wav2vec2"]
)
def test_other_orders(name: str) -> None:
    """One parameter at a time, and one submodule at a time from the last."""
    assert_equals_eager(builder(name), [one_at_a_time, submodules_reversed], counted=False)


LANGUAGE = {
    "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200,
}  # fmt: skip


def llama(**options: object) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LANGUAGE, **options))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings(order: Order, tied: bool) -> None:
    """One tensor by two names, or two."""
    assert_equals_eager(lambda: llama(tie_word_embeddings=tied), [order])


def test_the_example() -> None:
    """Cast once built, half of it materialized, then the rest; an optimizer follows, and the
    losses of the training steps are eager's to the bit.
    """
    tokens = torch.randint(0, 200, (2, 12), generator=torch.Generator().manual_seed(1))

    def losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        found = []
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    torch.manual_seed(0)
    eager = llama().to(torch.bfloat16)
    expected = losses(eager, torch.optim.AdamW(eager.parameters()))

    torch.manual_seed(0)
    model = deferred_init(llama)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    materialize_module(model.model.layers[1])
    materialize_module(model)
    assert losses(model, optimizer) == expected
    assert_same(eager, model)


def test_the_next_model_of_a_script() -> None:
    """Its weights depend on where the generator was left."""

    def script(build: object) -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [build(llama), build(llama), build(torch.nn.Linear, 4, 5)]  # type: ignore[operator]

    eager = script(lambda function, *args: function(*args))
    made = script(deferred_init)
    assert torch.equal(torch.rand(3), after(eager))
    for one, other in zip(eager, reversed(list(reversed(made))), strict=True):
        assert_same(one, materialize_module(other))


def after(_models: object) -> torch.Tensor:
    """What eager draws after the script: run again, as the models have moved no generator since."""
    torch.manual_seed(0)
    llama(), llama(), torch.nn.Linear(4, 5)
    return torch.rand(3)


def test_a_copy_of_a_deferred_model() -> None:
    """deepcopy copies the record, ties included; each is materialized on its own."""
    torch.manual_seed(0)
    eager = llama(tie_word_embeddings=True)
    torch.manual_seed(0)
    model = deferred_init(llama, tie_word_embeddings=True)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    assert_same(eager, materialize_module(twin))
    assert torch.equal(materialize_module(model).lm_head.weight, eager.lm_head.weight + 1)

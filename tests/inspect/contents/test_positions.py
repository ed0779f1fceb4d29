"""A model that has learned its positions runs on no longer text: on fakes as in eager."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from torchfake import check, estimate, fake_mode, fit, graph_of, summary
from torchfake.errors import CheckError, InputsError
from torchfake.inspect import Serve, example_inputs
from torchfake.inspect.contents.positions import positions_of, too_long

pytestmark = pytest.mark.filterwarnings("ignore")

MOST = 12
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50,
         "intermediate_size": 16}  # fmt: skip
LEARNED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHead", "n_positions",
             {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50}),
    "bert": ("Bert", "max_position_embeddings", SIZES),
    "roberta": ("Roberta", "max_position_embeddings", {**SIZES, "pad_token_id": 1}),
    "opt": ("OPTForCausalLM", "max_position_embeddings",
            {**SIZES, "ffn_dim": 16, "word_embed_proj_dim": 16}),
    "whisper": ("WhisperForConditionalGeneration", "max_target_positions",
                {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50,
                 "encoder_attention_heads": 2, "decoder_attention_heads": 2,
                 "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_source_positions": 20,
                 "pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1,
                 "eos_token_id": 2}),
}  # fmt: skip


def model(kind: str) -> nn.Module:
    name, key, options = LEARNED[kind]
    number = MOST + 2 if kind == "roberta" else MOST  # its positions begin after the padding
    config = transformers.AutoConfig.for_model(kind, **{**options, key: number})
    name = name if "For" in name else f"{name}Model"
    made: nn.Module = getattr(transformers, name)(config)
    return made.eval()


@pytest.mark.parametrize("kind", LEARNED)
def test_the_positions_are_those_that_eager_runs_on(kind: str) -> None:
    real = model(kind)
    found = positions_of(real)
    assert found is not None
    assert (found.number, found.key) == (MOST, LEARNED[kind][1])
    with torch.no_grad():
        real(**_real(example_inputs(real, batch=1, seq=MOST)))
        with pytest.raises((IndexError, RuntimeError)) as raised:
            real(**_real(example_inputs(real, batch=1, seq=MOST + 1)))
    text = too_long(raised.value, real, MOST + 1, "give at most seq={}")
    assert text.startswith(
        f"{type(real).__name__} has learned 12 positions, and does not run on 13"
    )


def _real(inputs: Any) -> dict[str, torch.Tensor]:
    """Real tensors like those that were made: tokens that are no padding, masks of ones."""
    values = {name: 3 if name.endswith("ids") else 1 for name in inputs}
    return {
        name: torch.full(value.shape, values[name], dtype=value.dtype)
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize("kind", LEARNED)
def test_every_function_names_the_limit_and_the_remedy(kind: str) -> None:
    with fake_mode():
        made = model(kind)
    fit_as_it_is = partial(fit, vary=None)
    for run in (estimate, summary, graph_of, fit_as_it_is):
        run(made, batch=1, seq=MOST)
        with pytest.raises(InputsError, match=r"12 positions.*13 tokens: give at most seq=12, or"):
            run(made, batch=1, seq=MOST + 1)
    with pytest.raises(CheckError, match=r"12 positions.*13 tokens: give at most seq=12"):
        check(made, batch=1, seq=MOST + 1)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
@pytest.mark.parametrize("options", [{}, {"prompt": 4}, {"prefill": 5}, {"cache": "dynamic"}])
def test_a_server_of_more_is_refused_whatever_its_passes_are(
    kind: str, options: dict[str, Any]
) -> None:
    with fake_mode():
        made = model(kind)
    estimate(made, serve=Serve(MOST, **{**options, "users": 2}))
    with pytest.raises(InputsError, match=r"13 tokens: give a context of at most 12"):
        estimate(made, serve=Serve(MOST + 1, **options))
    with pytest.raises(InputsError, match=r"13 tokens: give decode= at most 12 tokens"):
        estimate(made, batch=1, decode=(6, 8))


def test_rotary_positions_are_only_warned_of() -> None:
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": MOST}
    with fake_mode():
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    for options in ({"batch": 1, "seq": 13}, {"serve": Serve(13)}, {"batch": 1, "decode": (6, 8)}):
        found = estimate(made, **options)  # type: ignore[arg-type]
        assert found.counted.warnings == (
            "13 tokens are more than the model's max_position_embeddings, 12",
        )


def test_an_encoder_and_a_decoder_have_positions_of_their_own() -> None:
    config = transformers.BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=50,
        max_position_embeddings=MOST,
    )  # fmt: skip
    with fake_mode():
        made = transformers.BartForConditionalGeneration(config)
    found = estimate(made, batch=1, decode=(MOST, MOST))
    assert found.counted.warnings == ()
    with pytest.raises(InputsError, match="has learned 12 positions"):
        estimate(made, batch=1, decode=(4, MOST + 2))


def test_other_modules_and_errors_are_not_explained() -> None:
    assert positions_of(nn.Linear(3, 4)) is None
    assert not too_long(IndexError("index out of range"), nn.Linear(3, 4), 9, "{}")
    assert not too_long(RuntimeError("no such thing"), model("gpt2"), MOST + 1, "{}")
    assert not too_long(IndexError("index out of range"), model("gpt2"), MOST, "{}")

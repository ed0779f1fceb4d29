"""The values that the text of options means."""

from __future__ import annotations

import pytest

from torchfake import Serve
from torchfake.cli.options import parse_decode, parse_lengths, parse_serve
from torchfake.errors import InputsError, TargetError


def test_what_is_served() -> None:
    text = "8192,users=16,cache=quantized,cache_dtype=int8,backend=hqq,prompt=100,prefill=50"
    named = {"cache": "quantized", "cache_dtype": "int8", "backend": "hqq"}
    assert parse_serve(text) == Serve(8192, 16, prompt=100, prefill=50, **named)
    assert parse_serve("32K,prefill=2k") == Serve(32768, prefill=2048)
    assert parse_serve("users=2, context=64,block_size=32") == Serve(64, 2, block_size=32)


@pytest.mark.parametrize("text", ["users=2", "8192,user=3", "8192,16", ""])
def test_text_that_serves_nothing(text: str) -> None:
    with pytest.raises(TargetError, match="--serve"):
        parse_serve(text)


def test_lengths_may_count_in_1024_tokens() -> None:
    assert parse_decode("8k,256") == (8192, 256)
    assert parse_lengths("512, 4k") == (512, 4096)


@pytest.mark.parametrize("text", ["8k", "8k,", "8,9,10", "-1,4", "k,4", "8x,4"])
def test_text_that_decodes_nothing(text: str) -> None:
    with pytest.raises(InputsError, match="is not PROMPT,NEW"):
        parse_decode(text)


def test_tokens_are_counted_alike_everywhere(run) -> None:
    gpt2 = ("transformers:GPT2LMHeadModel", "-c", "n_layer=1", "-c", "n_positions=8192")
    _, out, _ = run("fit", *gpt2, "--seq", "4k", "--gpu", "t4")
    assert "seq 4,096" in out
    llama = ("transformers:LlamaForCausalLM", "-c", "num_hidden_layers=1")
    _, out, _ = run("serve", *llama, "--context", "4K", "--prompt", "1k", "--pass-tokens", "2k")
    assert "prompts of 1,024, answers of 3,072 tokens" in out
    code, _, err = run("serve", *llama, "--context", "4x")
    assert code == 2
    assert "'--context': '4x' is not a whole number of 2 or more, such as 4096 or 4k;" in err

"""The error about an option that does not exist names the one that may be meant."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "fit m --load-in-4bit",
            "; see --weights SCHEME: Quantize the weights to 4 or 8 bits: nf4",
        ),
        ("fit m --quantization nf4", "; see --weights SCHEME: Quantize the weights to 4 or 8 bits"),
        ("fit m --batch-size 4", "; see --batch: Batch size on one GPU, of each micro-batch; runs"),
        (
            "fit m --seq-len 4",
            "; see --seq TOKENS: Sequence length, such as 4096 or 4k; run",
        ),
        ("fit m --users 4", "No such option: --users of torchfake fit; torchfake serve has it\n"),
        ("fit m --max-new-tokens 4", "; see --decode PROMPT,NEW: Generate NEW tokens after a pro"),
        ("fit m --num-gpus 8", "; see torchfake plan --gpus: Number of GPUs\n"),
        ("fit m --tp 8", "; see torchfake plan --mesh NAME=SIZE,...: Mesh axes, outermost first"),
        ("plan m --tensor-parallel-size 8", "; see --mesh NAME=SIZE,...: Mesh axes, outermost fi"),
        ("plan m --gradient-checkpointing", "; see --checkpoint: Activation checkpointing of the"),
        (
            "plan m --kv-cache-dtype fp8",
            "; see torchfake serve --cache-dtype DTYPE: Dtype of the KV cache: ",
        ),
        ("fit m --trian", "No such option: --trian (Possible options: --train)\n"),
        ("serve m --answer 3", "No such option: --answer (Possible options: --answer-tokens)\n"),
        ("fit m --vram 24", "No such option: --vram\n"),  # typer's own guesses were --lora, --vary
        (f"fit m --{'x' * 1000}", "No such option: --xxx"),
        ("fit m -q", "No such option: -q\n"),
        (
            "fit m --gpus 8",
            "No such option: --gpus of torchfake fit; torchfake plan and torchfake serve have it\n",
        ),
        (
            "serve m --ttft 500ms",
            "; --ttft SECONDS: Longest time to first token under the load: 0.5\n",
        ),
        (
            "serve m --context 4kk",
            "; --context TOKENS: Length of a sequence, prompt and",
        ),
    ],
)
def test_one_line_names_the_option(run, arguments, said):
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert said in err

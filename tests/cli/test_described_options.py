"""What is meant is found by the words of names and of their descriptions."""

from __future__ import annotations

import pytest

from torchfake.cli.unknown_options import described_by

OPTIONS = {
    "weights": "Quantize the weights to 4 or 8 bits",
    "seq": "Sequence length in tokens; runs the model.",
    "batch": "Batch size on one GPU; runs the model.",
    "decode": "Generate NEW tokens after a prompt of PROMPT tokens.",
    "mesh": "Mesh axes: tp splits tensors (tensor parallelism), pp layers.",
    "sequence-parallel": "Also split the sequence, where tensors are not split.",
    "accumulate": "Micro-batches (gradient accumulation steps) of a step.",
    "keep-gradients": "Zero the gradients between steps.",
}


@pytest.mark.parametrize(
    ("unknown", "found"),
    [
        ("load-in-4bit", ["weights"]),  # a digit is a word of its own
        ("quantization", ["weights"]),  # the same stem, with another ending
        ("seq_len", ["seq"]),  # "len" begins "length"
        ("Batch-Size", ["batch"]),
        ("max-new-tokens", ["decode"]),
        ("tensor-parallel-size", ["mesh"]),  # words that follow each other count
        ("gradient-accumulation-steps", ["accumulate"]),
        ("trust-remote-code", []),
        ("verbose", []),
        ("", []),
    ],
)
def test_words_find_what_they_describe(unknown: str, found: list[str]) -> None:
    assert described_by(unknown, OPTIONS) == found


def test_what_is_described_alike_is_found_alike() -> None:
    assert described_by("rank", {"a": "The rank.", "b": "The rank."}) == ["a", "b"]
    many = dict.fromkeys("abcd", "It is said where it runs: on the model.")
    assert described_by("model", many) == []  # in too many descriptions
    assert described_by("rank", {}) == []

"""The picture of README.md, drawn by torchfake: ``python -m tests.docs.picture``.

Input: nothing. Output: docs/images/memory_of_a_step.svg. Invariant: what is drawn is what
``Estimate.plot`` shows in a notebook, but narrower, for phones. Called by: ``nox -s notebooks``;
``test_picture``.
"""

from __future__ import annotations

from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import estimate, example_inputs, fake_mode
from torchfake.inspect.figures.drawing import memory_curve
from torchfake.inspect.figures.svg import curve_svg, standalone

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "memory_of_a_step.svg"

WIDTH = 520
"""In pixels, at which a phone shows texts of 12 pixels at 9."""


def drawn() -> str:
    """A step of training a model of 1.24 billion parameters, the one of docs/inspect.md."""
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
    )
    with fake_mode():
        model = LlamaForCausalLM(config)
    inputs = example_inputs(model, batch=4, seq=2048, labels=True)
    step = estimate(model, inputs, optimizer="adamw", autocast="bf16", gpu="h100-80gb")
    return standalone(curve_svg(memory_curve(step)), WIDTH) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(), encoding="utf-8")

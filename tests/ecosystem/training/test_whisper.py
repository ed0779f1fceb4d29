"""openai-whisper, whose model registers a sparse buffer."""

from __future__ import annotations

import torch
from whisper.model import ModelDimensions, Whisper

from torchfake import deferred_init, fake_like, fake_mode, materialize_module, summary

DIMS = ModelDimensions(
    n_mels=8, n_audio_ctx=20, n_audio_state=32, n_audio_head=2, n_audio_layer=1,
    n_vocab=100, n_text_ctx=16, n_text_state=32, n_text_head=2, n_text_layer=2,
)  # fmt: skip


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 8, 40), torch.zeros(1, 4, dtype=torch.int64)


def test_it_is_built_and_run() -> None:
    expected = Whisper(DIMS)
    with fake_mode():
        model = Whisper(DIMS).half().float()
        logits = model(*_inputs())
        pairs = [(i.item(), j.item()) for i, j in model.alignment_heads.indices().T]
    assert logits.shape == expected(*_inputs()).shape
    assert [list(pair) for pair in pairs] == expected.alignment_heads.indices().T.tolist()


def test_it_is_summarised_and_copied() -> None:
    for model in (Whisper(DIMS), deferred_init(Whisper, DIMS)):
        assert "alignment_heads [2, 2] bool" in str(summary(model, *_inputs()))
        heads = fake_like(model).alignment_heads
        assert torch.equal(heads.to_dense(), Whisper(DIMS).alignment_heads.to_dense())


def test_it_is_materialized() -> None:
    torch.manual_seed(0)
    expected = Whisper(DIMS)
    torch.manual_seed(0)
    model = deferred_init(Whisper, DIMS)
    materialize_module(model)
    assert torch.equal(model.encoder.conv1.weight, expected.encoder.conv1.weight)
    assert torch.equal(model.alignment_heads.to_dense(), expected.alignment_heads.to_dense())

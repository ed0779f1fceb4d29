"""Models of transformers at their defaults, as fakes, and ones small enough to be real."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchfake import fake_mode

SEQ = 16
"""Sequence length of inputs, where it does not matter."""


def built(name: str) -> Any:
    """The model that AutoModel makes of an architecture's default config, as fakes."""
    transformers = pytest.importorskip("transformers")
    with fake_mode():
        return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))


def run(model: Any, inputs: dict[str, Any]) -> Any:
    with fake_mode():
        return model(**inputs)


SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 60,
}  # fmt: skip


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 60, "n_positions": 40}


ENCODER_DECODER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 60,
}  # fmt: skip


AUDIO = {
    **SMALL, "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
}  # fmt: skip


IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}


REAL: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT2,
    "GPT2DoubleHeadsModel": GPT2,
    "GPT2ForSequenceClassification": {**GPT2, "pad_token_id": 0},
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 1, "max_position_embeddings": 32},
    "BertForMaskedLM": {**SMALL, "max_position_embeddings": 32},
    "BertForTokenClassification": {**SMALL, "num_labels": 5},
    "BertForMultipleChoice": SMALL,
    "BertForQuestionAnswering": SMALL,
    "RobertaForMaskedLM": {**SMALL, "max_position_embeddings": 32},
    "T5ForConditionalGeneration": {
        "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60,
        "decoder_start_token_id": 0,
    },
    "BartForSequenceClassification": {**ENCODER_DECODER, "max_position_embeddings": 32},
    "ViTForImageClassification": {**IMAGE, "num_labels": 7},
    "ConvNextForImageClassification": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "SegformerForSemanticSegmentation": {
        "image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16,
    },
    "Wav2Vec2ForCTC": AUDIO,
    "Wav2Vec2ForSequenceClassification": {**AUDIO, "classifier_proj_size": 8},
    "WhisperForConditionalGeneration": {
        **ENCODER_DECODER, "num_mel_bins": 8, "max_source_positions": 20,
        "max_target_positions": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
    },
    "CLIPModel": {"text_config": SMALL, "vision_config": IMAGE},
}  # fmt: skip


def real_model(name: str) -> Any:
    """A small model with real values."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**REAL[name]))

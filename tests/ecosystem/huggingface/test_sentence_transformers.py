"""A model of sentence-transformers that is loaded in a mode."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.ecosystem.huggingface.pretrained import assert_loads_as_eager

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_a_saved_model(tmp_path: Path) -> None:
    """A transformer, pooled, and a layer of its own."""
    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=99,
    )  # fmt: skip
    tokenizer.save_pretrained(tmp_path / "bert")
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    parts = [
        modules.Transformer(str(tmp_path / "bert")),
        modules.Pooling(32),
        modules.Dense(32, 16),
    ]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "saved"))
    assert_loads_as_eager(lambda: SentenceTransformer(str(tmp_path / "saved"), device="cpu"))

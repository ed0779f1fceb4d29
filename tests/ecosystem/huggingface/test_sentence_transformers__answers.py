"""Sentences are encoded to arrays, which takes their values."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from torchfake import fake_mode

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")


def test_sentences_are_encoded(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=7, num_attention_heads=4, **sizes)).save_pretrained(tmp_path)
    with fake_mode(answer="typical") as mode:
        words = Transformer(str(tmp_path))
        encoder = SentenceTransformer(modules=[words, Pooling(64)], device="cpu")
        assert encoder.encode(["a b", "b a a"]).shape == (2, 64)
        assert encoder.encode("a", convert_to_tensor=True).shape == (64,)
    assert mode.answers

"""Sizes of inputs: those that configs and first layers have."""

from __future__ import annotations

import pytest
import torch

from tests.inspect.inputs.conftest import SMALL, real_model, run
from torchfake import estimate, fake_like, fake_mode
from torchfake.errors import InputsError
from torchfake.inspect.inputs.example_inputs import example_inputs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


transformers = pytest.importorskip("transformers")


def test_images_have_no_length() -> None:
    model = real_model("ViTForImageClassification")
    assert example_inputs(model, seq=5).seq is None
    assert example_inputs(model).resized(batch=3)["pixel_values"].shape == (3, 3, 32, 32)


def test_a_length_that_no_input_has_is_refused() -> None:
    with pytest.raises(
        InputsError, match="Classification takes no sequence, so no input has seq=5"
    ):
        estimate(real_model("ViTForImageClassification"), batch=1, seq=5)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("GPT2LMHeadModel", 40),
        ("LlamaForCausalLM", 32),
        ("RobertaForMaskedLM", 30),  # its positions begin at 2
        ("T5ForConditionalGeneration", 128),
        ("WhisperForConditionalGeneration", 24),
    ],
)
def test_the_length_is_what_the_model_has_positions_for(name: str, length: int) -> None:
    assert example_inputs(real_model(name)).seq == length


def test_frames_of_a_sound_are_those_that_the_model_sees() -> None:
    model = real_model("Wav2Vec2ForCTC")
    assert run(fake_like(model), example_inputs(model, seq=11)).logits.shape[1] == 11


def test_tokens_have_values_and_no_meaning() -> None:
    model = real_model("BartForSequenceClassification")
    ids = example_inputs(model, seq=4)["input_ids"].tolist()[0]
    assert ids[-1] == model.config.eos_token_id
    assert not {model.config.pad_token_id, model.config.bos_token_id, ids[-1]} & set(ids[:-1])


def test_masks_that_are_too_large_to_be_remembered() -> None:
    """Both ask whether anything is masked; where nobody can say, they are given no mask."""
    for name in ("BertModel", "LlamaModel"):
        model_class = getattr(transformers, name)
        with fake_mode():
            model = model_class(model_class.config_class(**SMALL, max_position_embeddings=8192))
        for batch, rows, is_known in ((16, 8192, True), (20, 8192, True), (200, 8192, False)):
            inputs = example_inputs(model, batch=batch, seq=rows)
            assert ("attention_mask" in inputs) is is_known
            assert run(model, inputs).last_hidden_state.shape == (batch, rows, 16)


def test_images_are_of_the_models_dtype() -> None:
    model = fake_like(real_model("ViTForImageClassification")).to(torch.bfloat16)
    inputs = example_inputs(model)
    assert inputs["pixel_values"].dtype == run(model, inputs).logits.dtype == torch.bfloat16

"""Labels: with them the output has a loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.inspect.inputs.conftest import SEQ, SMALL, run
from torchfake import fake_mode
from torchfake.errors import InputsError
from torchfake.inspect.inputs.example_inputs import example_inputs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


transformers = pytest.importorskip("transformers")


HEADS = (
    "AlbertForPreTraining BertForNextSentencePrediction BertForPreTraining "
    "ASTForAudioClassification DistilBertForQuestionAnswering MBartForConditionalGeneration "
    "PatchTSTForRegression Qwen2ForTokenClassification SwinForMaskedImageModeling SiglipModel "
    "ViTMAEForPreTraining Speech2TextForConditionalGeneration Wav2Vec2ForAudioFrameClassification "
    "Wav2Vec2ForXVector"
)


@pytest.mark.parametrize("name", HEADS.split())
def test_labels_give_a_loss(name: str) -> None:
    model_class = getattr(transformers, name)
    with fake_mode():
        model = model_class(model_class.config_class())
    loss = run(model, example_inputs(model, batch=2, seq=SEQ, labels=True)).loss
    assert loss.numel() == 1
    loss.backward()
    assert any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "shape", "dtype"),
    [
        ({"num_labels": 3}, (2,), torch.int64),
        ({"num_labels": 1}, (2,), torch.float32),
        ({"num_labels": 3, "problem_type": "regression"}, (2, 3), torch.float32),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, (2, 3), torch.float32),
    ],
)
def test_labels_of_a_classifier_by_its_problem(
    settings: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    with fake_mode():
        config = transformers.BertConfig(**SMALL, **settings)
        model = transformers.BertForSequenceClassification(config)
    inputs = example_inputs(model, batch=2, labels=True)
    assert (tuple(inputs["labels"].shape), inputs["labels"].dtype) == (shape, dtype)
    assert run(model, inputs).loss.shape == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BertModel", "computes no loss from labels .* such as transformers:BertForMaskedLM, or"),
        (
            "ViTModel",
            "a task head, such as transformers:ViTForImageClassification",
        ),  # takes what to mask
        ("ViTMAEModel", "computes no loss"),
        ("YolosForObjectDetection", "matches its output to the labels by value"),
    ],
)
def test_models_without_labels(name: str, said: str) -> None:
    model_class = getattr(transformers, name)
    with fake_mode():
        model = model_class(model_class.config_class())
    with pytest.raises(InputsError, match=said):
        example_inputs(model, labels=True)

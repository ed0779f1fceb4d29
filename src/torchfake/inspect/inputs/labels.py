"""Labels: the arguments from which a transformers model computes its loss.

Input: sizes, and the inputs generated for them. Output: more arguments of ``forward``. Invariant:
labels have the shape and dtype that the head's loss needs; each tensor is filled with one value,
which is known if the tensor is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.inputs.audio_tensors import spectrogram_mask
from torchfake.inspect.inputs.constant_tensors import INT, constant_floats
from torchfake.inspect.inputs.image_tensors import prediction_mask
from torchfake.inspect.inputs.sizes import Sizes

LabelFactory = Callable[[Sizes, dict[str, Any]], torch.Tensor]

_HEADS_THAT_MATCH = (
    "ForObjectDetection", "ForSegmentation", "ForInstanceSegmentation",
    "ForUniversalSegmentation", "ForVideoSegmentation",
)  # fmt: skip
_TRANSCRIPTION_HEADS = ("ForCTC", "ForRNNT", "ForTDT")
_OTHER_HEADS = ("LMHeadModel", "DoubleHeadsModel", "EncoderDecoderModel")
_HEADS_WITHOUT_LOSS = (
    "ForRetrieval", "FlavaForPreTraining", "GradiumPhononTTSForConditionalGeneration",
    "HiggsAudioV2ForConditionalGeneration", "PocketTTSForConditionalGeneration",
    "ShieldGemma2ForImageClassification", "SplinterForPreTraining", "VisualBertForPreTraining",
)  # fmt: skip
"""Heads that take labels, but compute no loss from the generated labels alone."""


def labels_for(sizes: Sizes, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments to add to `inputs` so that the output has a loss.

    Raises:
        InputsError: if the model has no loss, or one that depends on values.
    """
    name = type(sizes.model).__name__
    known = [key for key in LABELS if sizes.has_argument(key)]
    if sizes.class_ends_with(*_HEADS_THAT_MATCH) and (known or sizes.has_argument("mask_labels")):
        raise InputsError(
            f"the loss of {name} matches its output to the labels by value, and fakes have no "
            "values: leave the labels out, and make a loss of the output, such as its sum"
        )
    if not _has_loss(sizes, known):
        raise InputsError(
            f"{name} computes no loss from labels that can be generated: use a model with a task "
            f"head{_with_head(sizes)}, or compute a loss from the output, such as its sum"
        )
    labels = {key: LABELS[key](sizes, inputs) for key in known}
    if sizes.class_ends_with(*_TRANSCRIPTION_HEADS) and "input_features" in inputs:
        labels["attention_mask"] = spectrogram_mask(sizes)
    return labels


_TASKS = (
    "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
)  # fmt: skip
"""Tasks whose heads compute losses from generated labels, by their names in transformers."""


def _with_head(sizes: Sizes) -> str:
    """``, such as transformers:BertForMaskedLM``, a class of the same architecture; or ""."""
    from transformers.models.auto import modeling_auto

    for task in _TASKS:
        known = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
        found = known.get(sizes.model_type)
        if isinstance(found, str) and found != type(sizes.model).__name__:
            return f", such as transformers:{found}"
    return ""


def _has_loss(sizes: Sizes, known: list[str]) -> bool:
    """Whether the model computes a loss: models with a head do, and models that compare texts. A
    model with an argument ``noise`` masks its input itself, without labels.
    """
    if sizes.class_ends_with(*_HEADS_WITHOUT_LOSS):
        return False
    is_head = sizes.class_ends_with(*_OTHER_HEADS) or not sizes.class_ends_with("Model")
    return "return_loss" in known or (is_head and (bool(known) or sizes.has_argument("noise")))


def _labels(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The argument ``labels``: by the head; otherwise tokens for a text, or classes."""
    default = classes if _token_ids(inputs) is None else tokens
    by_head = (make for heads, make in HEADS.items() if sizes.class_ends_with(*heads))
    return next(by_head, default)(sizes, inputs)


def _token_ids(inputs: dict[str, Any]) -> torch.Tensor | None:
    return inputs.get("decoder_input_ids", inputs.get("input_ids"))


def tokens(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A token for each position of the predicted text, which is the decoder's if there is one."""
    ids = _token_ids(inputs)
    shape = sizes.text_shape if ids is None else ids.shape
    return torch.full(shape, sizes.plain_token)


def text_tokens(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A text token for each position, even if the input has several tokens per position."""
    return torch.full(sizes.text_shape, sizes.plain_token)


def codebook_tokens(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A token for each position and codebook."""
    num = sizes.config_int("num_codebooks", of="decoder", default=1)
    return torch.full((sizes.batch, sizes.seq, num), sizes.plain_token)


def output_spectrogram(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The spectrogram that the model predicts."""
    length = sizes.seq * sizes.config_int("reduction_factor", default=1)
    return constant_floats(sizes, length, sizes.config_int("num_mel_bins", default=1))


def token_classes(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each token."""
    return torch.zeros(sizes.text_shape, dtype=INT)


def classes(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each example; for regression one or several numbers."""
    num = sizes.config.num_labels
    if getattr(sizes.config, "problem_type", None) == "multi_label_classification":
        return constant_floats(sizes, num)
    if getattr(sizes.config, "problem_type", None) == "regression" or num == 1:
        return constant_floats(sizes, *(() if num == 1 else (num,)))
    return torch.zeros(sizes.batch, dtype=INT)


def first_choices(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The index 0 for each example: the first choice, class or position."""
    return torch.zeros(sizes.batch, dtype=INT)


def class_scores(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each example and class."""
    return constant_floats(sizes, sizes.config.num_labels)


def frame_scores(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each frame of a sound and each class."""
    return constant_floats(sizes, sizes.seq, sizes.config.num_labels)


def transcriptions(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """Tokens of a transcription, fewer than frames of the sound, as the loss requires."""
    return torch.full((sizes.batch, max(sizes.seq // 16, 1)), sizes.plain_token)


def pixel_classes(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each pixel."""
    return torch.zeros(sizes.batch, *sizes.image_size, dtype=INT)


def depths(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each pixel."""
    return constant_floats(sizes, *sizes.image_size)


def future_values(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The values that follow a time series."""
    if sizes.config_value("horizon_length") is not None:
        return constant_floats(sizes, sizes.config_int("horizon_length", default=1))
    return constant_floats(
        sizes, sizes.config_int("prediction_length", default=1), sizes.num_channels
    )


def series_targets(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The targets that are predicted from a time series: numbers, or a class."""
    if sizes.class_ends_with("Regression"):
        return constant_floats(sizes, sizes.config_int("num_targets", default=1))
    return first_choices(sizes, inputs)


LABELS: dict[str, Callable[[Sizes, dict[str, Any]], Any]] = {
    "labels": _labels,
    "start_positions": first_choices,
    "end_positions": first_choices,
    "next_sentence_label": first_choices,
    "sentence_order_label": first_choices,
    "sentence_image_labels": first_choices,
    "mc_labels": first_choices,
    "bool_masked_pos": lambda sizes, inputs: prediction_mask(sizes),
    "future_values": future_values,
    "target_values": series_targets,
    "return_loss": lambda sizes, inputs: True,
}
"""The arguments that losses are computed from."""

_MUSIC_MODELS = ("MusicgenFor", "MusicgenMelodyFor")
HEADS: dict[tuple[str, ...], LabelFactory] = {
    ("KyutaiSpeechToTextForConditionalGeneration",): text_tokens,
    tuple(f"{name}CausalLM" for name in _MUSIC_MODELS): codebook_tokens,
    tuple(f"{name}ConditionalGeneration" for name in _MUSIC_MODELS): codebook_tokens,
    ("SpeechT5ForTextToSpeech", "SpeechT5ForSpeechToSpeech"): output_spectrogram,
    ("ForTokenClassification",): token_classes,
    ("ForMultipleChoice", "ForNextSentencePrediction", "ForXVector"): first_choices,
    ("LxmertForQuestionAnswering",): first_choices,
    ("ViltForQuestionAnswering", "VisualBertForQuestionAnswering"): class_scores,
    ("ForAudioFrameClassification",): frame_scores,
    _TRANSCRIPTION_HEADS: transcriptions,
    ("ForSemanticSegmentation",): pixel_classes,
    ("ForDepthEstimation",): depths,
    ("Classification", "ClassificationLearned", "ClassificationFourier"): classes,
    ("ClassificationConvProcessing", "VisualReasoning"): classes,
}
"""The factories of ``labels`` by the end of the class's name; for others see :func:`_labels`."""

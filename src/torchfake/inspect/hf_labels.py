"""Labels: what makes a transformers model give its loss.

Enters: sizes, and the inputs made for them. Leaves: more arguments of ``forward``. Invariant:
labels are of the shape and dtype that the head's loss takes; they are all alike, and known where
small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.hf_makers import INT, masked_patches, numbers, spectrogram_mask
from torchfake.inspect.hf_sizes import Sizes

Maker = Callable[[Sizes, dict[str, Any]], torch.Tensor]


_MATCHED = (
    "ForObjectDetection", "ForSegmentation", "ForInstanceSegmentation",
    "ForUniversalSegmentation", "ForVideoSegmentation",
)  # fmt: skip
_TRANSCRIBED = ("ForCTC", "ForRNNT", "ForTDT")
_WITH_HEADS = ("LMHeadModel", "DoubleHeadsModel", "EncoderDecoderModel")
_WITHOUT_LOSS = (
    "ForRetrieval", "FlavaForPreTraining", "GradiumPhononTTSForConditionalGeneration",
    "HiggsAudioV2ForConditionalGeneration", "PocketTTSForConditionalGeneration",
    "ShieldGemma2ForImageClassification", "SplinterForPreTraining", "VisualBertForPreTraining",
)  # fmt: skip
"""Heads that take labels, and give no loss for those alone."""


def labels_for(sizes: Sizes, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments beside `inputs` for which the output has a loss.

    Raises:
        InputsError: if the model has no loss, or one that needs values which fakes do not have.
    """
    name = type(sizes.model).__name__
    known = [key for key in LABELS if sizes.takes(key)]
    if sizes.is_a(*_MATCHED) and (known or sizes.takes("mask_labels")):
        raise InputsError(
            f"the loss of {name} matches its output to the labels by value, and fakes have no "
            "values: leave the labels out, and make a loss of the output, such as its sum"
        )
    if not _has_loss(sizes, known):
        raise InputsError(
            f"{name} gives no loss for labels that are known here: name a model with a head for a "
            "task, or make a loss of the output, such as its sum"
        )
    labels = {key: LABELS[key](sizes, inputs) for key in known}
    if sizes.is_a(*_TRANSCRIBED) and "input_features" in inputs:
        labels["attention_mask"] = spectrogram_mask(sizes)
    return labels


def _has_loss(sizes: Sizes, known: list[str]) -> bool:
    """Heads have one, models that compare texts too; one that draws its own noise masks itself."""
    if sizes.is_a(*_WITHOUT_LOSS):
        return False
    is_head = sizes.is_a(*_WITH_HEADS) or not sizes.is_a("Model")
    return "return_loss" in known or (is_head and (bool(known) or sizes.takes("noise")))


def _labels(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """Whatever ``labels`` are here, by the head."""
    usual = classes if _ids(inputs) is None else words
    return next((m for heads, m in HEADS.items() if sizes.is_a(*heads)), usual)(sizes, inputs)


def _ids(inputs: dict[str, Any]) -> torch.Tensor | None:
    return inputs.get("decoder_input_ids", inputs.get("input_ids"))


def words(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A token for each that the model predicts from: those of the decoder, where there is one."""
    ids = _ids(inputs)
    shape = sizes.text if ids is None else ids.shape
    return torch.full(shape, sizes.token)


def text_words(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A token of text for each position, whatever else is there in the input."""
    return torch.full(sizes.text, sizes.token)


def code_words(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A token of each codebook for each position."""
    num = sizes.number("num_codebooks", of="decoder", default=1)
    return torch.full((sizes.batch, sizes.seq, num), sizes.token)


def mels(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A spectrogram to be spoken."""
    length = sizes.seq * sizes.number("reduction_factor", default=1)
    return numbers(sizes, length, sizes.number("num_mel_bins", default=1))


def tags(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each token."""
    return torch.zeros(sizes.text, dtype=INT)


def classes(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each example; a number where there is one class, several for several."""
    num = sizes.config.num_labels
    if getattr(sizes.config, "problem_type", None) == "multi_label_classification":
        return numbers(sizes, num)
    if getattr(sizes.config, "problem_type", None) == "regression" or num == 1:
        return numbers(sizes, *(() if num == 1 else (num,)))
    return torch.zeros(sizes.batch, dtype=INT)


def one(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The first of whatever there is to choose from, for each example."""
    return torch.zeros(sizes.batch, dtype=INT)


def scores(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each class and example."""
    return numbers(sizes, sizes.config.num_labels)


def frame_scores(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each class and frame of a sound."""
    return numbers(sizes, sizes.seq, sizes.config.num_labels)


def transcripts(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """Fewer tokens than there are frames of a sound, as the loss demands."""
    return torch.full((sizes.batch, max(sizes.seq // 16, 1)), sizes.token)


def pixel_classes(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A class for each pixel."""
    return torch.zeros(sizes.batch, *sizes.image, dtype=INT)


def depths(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """A number for each pixel."""
    return numbers(sizes, *sizes.image)


def future(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """The values that come after."""
    if sizes.find("horizon_length") is not None:
        return numbers(sizes, sizes.number("horizon_length", default=1))
    return numbers(sizes, sizes.number("prediction_length", default=1), sizes.channels)


def targets(sizes: Sizes, inputs: dict[str, Any]) -> torch.Tensor:
    """What a series stands for: numbers, or a class."""
    if sizes.is_a("Regression"):
        return numbers(sizes, sizes.number("num_targets", default=1))
    return one(sizes, inputs)


LABELS: dict[str, Callable[[Sizes, dict[str, Any]], Any]] = {
    "labels": _labels,
    "start_positions": one,
    "end_positions": one,
    "next_sentence_label": one,
    "sentence_order_label": one,
    "sentence_image_labels": one,
    "mc_labels": one,
    "bool_masked_pos": lambda sizes, inputs: masked_patches(sizes),
    "future_values": future,
    "target_values": targets,
    "return_loss": lambda sizes, inputs: True,
}
"""The arguments that a loss is made from."""

_MUSIC = ("MusicgenFor", "MusicgenMelodyFor")
HEADS: dict[tuple[str, ...], Maker] = {
    ("KyutaiSpeechToTextForConditionalGeneration",): text_words,
    tuple(f"{name}CausalLM" for name in _MUSIC): code_words,
    tuple(f"{name}ConditionalGeneration" for name in _MUSIC): code_words,
    ("SpeechT5ForTextToSpeech", "SpeechT5ForSpeechToSpeech"): mels,
    ("ForTokenClassification",): tags,
    ("ForMultipleChoice", "ForNextSentencePrediction", "ForXVector"): one,
    ("LxmertForQuestionAnswering",): one,
    ("ViltForQuestionAnswering", "VisualBertForQuestionAnswering"): scores,
    ("ForAudioFrameClassification",): frame_scores,
    _TRANSCRIBED: transcripts,
    ("ForSemanticSegmentation",): pixel_classes,
    ("ForDepthEstimation",): depths,
    ("Classification", "ClassificationLearned", "ClassificationFourier"): classes,
    ("ClassificationConvProcessing", "VisualReasoning"): classes,
}
"""What ``labels`` are, by the end of a class's name; words where none fits and there is a text."""

"""Arguments by name: which of them a transformers model is given, and what makes each.

Enters: sizes. Leaves: tensors by the names of ``forward``. Invariant: a name means one thing for
all models, but for those in EXCEPTIONS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.hf_makers import (
    FLAG,
    INT,
    Maker,
    code_rows,
    codes,
    films,
    flat_patches,
    grids,
    halves,
    image_places,
    images,
    latents,
    mask,
    masked_patches,
    mels_behind,
    merged_grids,
    merged_patches,
    nothing,
    numbers,
    of_shape,
    pairs,
    patch_mask,
    patches,
    patches_in_line,
    places,
    positions,
    samples,
    series,
    shapes,
    spectrogram,
    spectrogram_mask,
    speech,
    square_patches,
    steps,
    tokens,
    tokens_behind_image,
    waveform,
)
from torchfake.inspect.hf_sizes import Sizes


def made(sizes: Sizes) -> dict[str, Any]:
    """Everything that `sizes.model` needs to run, in the order of its signature.

    Raises:
        InputsError: if it needs an argument that nothing here makes, or a longer text.
    """
    own = EXCEPTIONS.get(sizes.kind, {})
    given = {name for name in (*_given(sizes), *own) if sizes.takes(name)}
    for name, other in COMPANIONS.items():
        if other in given and sizes.takes(name):
            given.add(name)
    makers = {name: own.get(name) or MAKERS.get(name) for name in sizes.arguments if name in given}
    values = {name: (maker or _unknown(sizes, name))(sizes) for name, maker in makers.items()}
    return {name: value for name, value in values.items() if value is not None}


def _unknown(sizes: Sizes, name: str) -> Maker:
    raise InputsError(
        f"{type(sizes.model).__name__} needs {name!r}, of which nothing is known here: make the "
        "inputs yourself, inside fake_mode()"
    )


def _given(sizes: Sizes) -> Iterator[str]:
    """The arguments without which there is nothing to run on."""
    yield from sizes.main_names
    yield from (name for name, p in sizes.arguments.items() if p.default is p.empty)
    yield "input_ids"
    if not sizes.says("use_decoder_only_language_model"):
        yield "decoder_input_ids"
    if sizes.takes("return_loss"):  # a text is compared with something else
        yield from ("pixel_values", "input_features")
    elif not _marks_media(sizes):
        yield "pixel_values"


def _marks_media(sizes: Sizes) -> bool:
    """Whether images and the like stand for tokens of a text, so that a text can be without."""
    words = ("image", "video", "vision", "media", "audio", "speech")
    keys = [key for _, config in sizes.parts for key in vars(config)]
    marks = [key for key in keys if key.endswith(("token_id", "token_index"))]
    return any(word in key for key in marks for word in words)


MAKERS: dict[str, Maker] = {
    "input_ids": tokens,
    "attention_mask": mask,
    "decoder_input_ids": tokens,
    "decoder_attention_mask": mask,
    "qformer_input_ids": tokens,
    "qformer_attention_mask": mask,
    "bbox": of_shape("seq", 4, dtype=INT),
    "pixel_values": images,
    "pixel_values_videos": films,
    "hidden_states": patches,
    "grid_thw": grids,
    "image_grid_thw": grids,
    "merge_sizes": lambda sizes: torch.full((sizes.batch,), sizes.merge),
    "spatial_shapes": shapes,
    "pixel_attention_mask": patch_mask,
    "pixel_position_ids": places,
    "input_values": waveform,
    "input_features": spectrogram,
    "input_features_mask": spectrogram_mask,
    "feature_attention_mask": spectrogram_mask,
    "flattened_patches": flat_patches,
    "bool_masked_pos": masked_patches,
    "past_values": series,
    "latents": of_shape("hidden_size", "seq"),
    "inputs_embeds": of_shape("seq", "hidden_size"),
}
"""What nearly all models mean by a name."""

COMPANIONS: dict[str, str] = {
    "attention_mask": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
    "qformer_attention_mask": "qformer_input_ids",
    "bbox": "input_ids",
    "input_features_mask": "input_features",
    "feature_attention_mask": "input_features",
    "spatial_shapes": "pixel_values",
    "pixel_attention_mask": "spatial_shapes",
}
"""What is given whenever something else is."""

EXCEPTIONS: dict[str, dict[str, Maker]] = {
    "audio-spectrogram-transformer": {"input_values": of_shape("max_length", "num_mel_bins")},
    "blip-2": {"input_ids": tokens_behind_image},
    "blip_2_qformer": {
        "query_embeds": of_shape(32, "hidden_size"),
        "encoder_hidden_states": of_shape("seq", "encoder_hidden_size"),
    },
    "bros": {"bbox": of_shape("seq", 4)},
    "clap": {"input_features": of_shape(1, 1001, "num_mel_bins")},
    "clap_audio_model": {"input_features": of_shape(1, 1001, "num_mel_bins")},
    "csm": {"input_ids": codes("num_codebooks")},
    "decision_transformer": {
        "states": of_shape("seq", "state_dim"),
        "actions": of_shape("seq", "act_dim"),
        "rewards": of_shape("seq", 1),
        "returns_to_go": of_shape("seq", 1),
        "timesteps": positions,
        "attention_mask": mask,
    },
    "dia": {"decoder_input_ids": codes("num_channels")},
    "efficientloftr": {"pixel_values": pairs},
    "gemma3n_audio": {
        "audio_mel": of_shape("seq", "input_feat_size"),
        "audio_mel_mask": of_shape("seq", dtype=FLAG),
    },
    "gemma4_audio": {"input_features": of_shape("seq", 128)},
    "idefics": {
        "pixel_values": lambda sizes: numbers(sizes, 1, sizes.channels, *sizes.image),
        "image_attention_mask": of_shape("seq", 1, dtype=INT, value=1),
    },
    "inkling2_vision": {"pixel_values": merged_patches, "image_grid_thw": merged_grids},
    "instructblip": {"input_ids": tokens_behind_image},
    "instructblipvideo": {"input_ids": tokens_behind_image},
    "kimi_k25_vision": {"pixel_values": square_patches},
    "kosmos-2": {"image_embeds_position_mask": image_places},
    "kyutai_speech_to_text": {"input_ids": codes("num_codebooks", more=1)},
    "lightglue": {"pixel_values": pairs},
    "lxmert": {
        "visual_feats": of_shape(36, "visual_feat_dim"),
        "visual_pos": of_shape(36, "visual_pos_dim"),
    },
    "minicpm_ocr_vision": {"pixel_values": patches_in_line, "target_sizes": shapes},
    "minicpmv4_7_vision": {"pixel_values": patches_in_line, "target_sizes": shapes},
    "molmo2": {"mm_token_type_ids": of_shape("seq", dtype=INT)},
    "moonshine": {"input_values": samples},
    "muse_glimmer_assistant": {
        "noise_embeds": of_shape("block_size", "hidden_size"),
        "context_hidden_states": lambda sizes: numbers(
            sizes, sizes.seq, len(sizes.find("target_layer_ids")) * sizes.config.hidden_size
        ),
    },
    "muse_spark_audio": {"input_values": samples},
    "oneformer": {"task_inputs": of_shape("task_seq_len", dtype=INT)},
    "musicgen": {"decoder_input_ids": code_rows, "decoder_attention_mask": nothing},
    "musicgen_decoder": {"input_ids": code_rows, "attention_mask": nothing},
    "musicgen_melody": {"decoder_input_ids": code_rows, "decoder_attention_mask": nothing},
    "musicgen_melody_decoder": {"input_ids": code_rows, "attention_mask": nothing},
    "perceiver": {"inputs": latents, "pixel_values": of_shape("num_channels", 224, 224)},
    "pix2struct": {"attention_mask": patch_mask},
    "pix2struct_vision_model": {"attention_mask": patch_mask},
    "qwen3_asr_encoder": {
        "input_features": lambda sizes: numbers(sizes, sizes.bins, sizes.spectrum)
    },
    "seggpt": dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), halves),
    "speech_to_text": {"input_features": of_shape("seq", "input_feat_per_channel")},
    "speecht5": {
        "input_values": speech,
        "decoder_input_values": mels_behind,
    },
    "superglue": {"pixel_values": pairs},
    "timesfm": {
        "past_values": steps(),
        "past_values_padding": steps(dtype=INT),
        "freq": of_shape(1, dtype=INT),
    },
    "timesfm2_5": {"past_values": steps()},
    "udop": {"bbox": of_shape("seq", 4)},
    "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": of_shape("hidden_size", "seq")},
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": waveform},
    "voxtral_realtime": {
        "input_features": lambda sizes: numbers(
            sizes, sizes.bins, sizes.seq * sizes.number("audio_length_per_tok", default=8)
        )
    },
    "xmod": {"lang_ids": of_shape(dtype=INT)},
}
"""Models that mean something else, or need more than their signatures say, by type."""

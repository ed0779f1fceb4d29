"""Arguments of ``forward`` by name: which of them a transformers model needs, and their factories.

Input: sizes. Output: tensors by the names of arguments. Invariant: a name has the same meaning in
all models, except for those in EXCEPTIONS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.errors import InputsError
from torchfake.inspect.inputs.audio_tensors import (
    mono_waveform,
    patched_time_series,
    perceiver_input,
    spectrogram,
    spectrogram_bins_first,
    spectrogram_mask,
    speecht5_decoder_input,
    speecht5_input,
    time_series,
    waveform,
)
from torchfake.inspect.inputs.constant_tensors import (
    BOOL,
    INT,
    Factory,
    constant_floats,
    left_out,
    of_shape,
)
from torchfake.inspect.inputs.image_tensors import (
    half_images,
    image_grids,
    image_pairs,
    image_sequences,
    merge_sizes,
    merged_patches,
    merged_video_grids,
    patch_mask,
    patch_positions,
    patches,
    patches_as_images,
    patches_side_by_side,
    patches_with_positions,
    pixel_values,
    prediction_mask,
    video_grids,
    videos,
)
from torchfake.inspect.inputs.sizes import Sizes
from torchfake.inspect.inputs.text_tensors import (
    attention_mask,
    codebook_ids,
    codebook_rows,
    image_token_mask,
    positions,
    token_ids,
    token_ids_after_image,
)


def make_arguments(sizes: Sizes) -> dict[str, Any]:
    """All arguments that `sizes.model` needs to run, in the order of its signature.

    Raises:
        InputsError: if the model needs an argument that no factory makes, or a longer text.
    """
    exceptions = EXCEPTIONS.get(sizes.model_type, {})
    needed = {name for name in (*_needed(sizes), *exceptions) if sizes.has_argument(name)}
    for name, other in COMPANIONS.items():
        if other in needed and sizes.has_argument(name):
            needed.add(name)
    values = {
        name: _factory(sizes, name, exceptions)(sizes) for name in sizes.arguments if name in needed
    }
    return {name: value for name, value in values.items() if value is not None}


def _factory(sizes: Sizes, name: str, exceptions: dict[str, Factory]) -> Factory:
    factory = exceptions.get(name) or FACTORIES.get(name)
    if factory is None:
        raise InputsError(
            f"{type(sizes.model).__name__} needs {name!r}, which cannot be made here: make the "
            "inputs yourself, inside fake_mode()"
        )
    return factory


def _needed(sizes: Sizes) -> Iterator[str]:
    """The names of the arguments that the model needs; `forward` may lack some of them."""
    yield from sizes.main_names
    yield from (name for name, p in sizes.arguments.items() if p.default is p.empty)
    yield "input_ids"
    if not sizes.config_flag("use_decoder_only_language_model"):
        yield "decoder_input_ids"
    if sizes.has_argument("return_loss"):  # the model compares texts with images or sounds
        yield from ("pixel_values", "input_features")
    elif not _has_media_tokens(sizes):
        yield "pixel_values"


def _has_media_tokens(sizes: Sizes) -> bool:
    """Whether images and sounds have placeholder tokens in the text, and so are optional."""
    media = ("image", "video", "vision", "media", "audio", "speech")
    keys = [key for _, config in sizes.configs for key in vars(config)]
    token_keys = [key for key in keys if key.endswith(("token_id", "token_index"))]
    return any(word in key for key in token_keys for word in media)


FACTORIES: dict[str, Factory] = {
    "input_ids": token_ids,
    "attention_mask": attention_mask,
    "decoder_input_ids": token_ids,
    "decoder_attention_mask": attention_mask,
    "qformer_input_ids": token_ids,
    "qformer_attention_mask": attention_mask,
    "bbox": of_shape("seq", 4, dtype=INT),
    "pixel_values": pixel_values,
    "pixel_values_videos": videos,
    "hidden_states": patches,
    "grid_thw": video_grids,
    "image_grid_thw": video_grids,
    "merge_sizes": merge_sizes,
    "spatial_shapes": image_grids,
    "pixel_attention_mask": patch_mask,
    "pixel_position_ids": patch_positions,
    "input_values": waveform,
    "input_features": spectrogram,
    "input_features_mask": spectrogram_mask,
    "feature_attention_mask": spectrogram_mask,
    "flattened_patches": patches_with_positions,
    "bool_masked_pos": prediction_mask,
    "past_values": time_series,
    "latents": of_shape("hidden_size", "seq"),
    "inputs_embeds": of_shape("seq", "hidden_size"),
}
"""The factories of arguments that have the same meaning in nearly all models."""

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
"""Arguments that are generated whenever another argument is."""

EXCEPTIONS: dict[str, dict[str, Factory]] = {
    "audio-spectrogram-transformer": {"input_values": of_shape("max_length", "num_mel_bins")},
    "blip-2": {"input_ids": token_ids_after_image},
    "blip_2_qformer": {
        "query_embeds": of_shape(32, "hidden_size"),
        "encoder_hidden_states": of_shape("seq", "encoder_hidden_size"),
    },
    "bros": {"bbox": of_shape("seq", 4)},
    "clap": {"input_features": of_shape(1, 1001, "num_mel_bins")},
    "clap_audio_model": {"input_features": of_shape(1, 1001, "num_mel_bins")},
    "csm": {"input_ids": codebook_ids("num_codebooks")},
    "decision_transformer": {
        "states": of_shape("seq", "state_dim"),
        "actions": of_shape("seq", "act_dim"),
        "rewards": of_shape("seq", 1),
        "returns_to_go": of_shape("seq", 1),
        "timesteps": positions,
        "attention_mask": attention_mask,
    },
    "dia": {"decoder_input_ids": codebook_ids("num_channels")},
    "efficientloftr": {"pixel_values": image_pairs},
    "gemma3n_audio": {
        "audio_mel": of_shape("seq", "input_feat_size"),
        "audio_mel_mask": of_shape("seq", dtype=BOOL),
    },
    "gemma4_audio": {"input_features": of_shape("seq", 128)},
    "idefics": {
        "pixel_values": image_sequences,
        "image_attention_mask": of_shape("seq", 1, dtype=INT, value=1),
    },
    "inkling2_vision": {"pixel_values": merged_patches, "image_grid_thw": merged_video_grids},
    "instructblip": {"input_ids": token_ids_after_image},
    "instructblipvideo": {"input_ids": token_ids_after_image},
    "kimi_k25_vision": {"pixel_values": patches_as_images},
    "kosmos-2": {"image_embeds_position_mask": image_token_mask},
    "kyutai_speech_to_text": {"input_ids": codebook_ids("num_codebooks", additional=1)},
    "lightglue": {"pixel_values": image_pairs},
    "lxmert": {
        "visual_feats": of_shape(36, "visual_feat_dim"),
        "visual_pos": of_shape(36, "visual_pos_dim"),
    },
    "minicpm_ocr_vision": {"pixel_values": patches_side_by_side, "target_sizes": image_grids},
    "minicpmv4_7_vision": {"pixel_values": patches_side_by_side, "target_sizes": image_grids},
    "molmo2": {"mm_token_type_ids": of_shape("seq", dtype=INT)},
    "moonshine": {"input_values": mono_waveform},
    "muse_glimmer_assistant": {
        "noise_embeds": of_shape("block_size", "hidden_size"),
        "context_hidden_states": lambda sizes: constant_floats(
            sizes, sizes.seq, len(sizes.config_value("target_layer_ids")) * sizes.config.hidden_size
        ),
    },
    "muse_spark_audio": {"input_values": mono_waveform},
    "omniasr_ctc": {"input_values": lambda sizes: constant_floats(sizes, 1, sizes.num_samples)},
    "oneformer": {"task_inputs": of_shape("task_seq_len", dtype=INT)},
    "musicgen": {"decoder_input_ids": codebook_rows, "decoder_attention_mask": left_out},
    "musicgen_decoder": {"input_ids": codebook_rows, "attention_mask": left_out},
    "musicgen_melody": {"decoder_input_ids": codebook_rows, "decoder_attention_mask": left_out},
    "musicgen_melody_decoder": {"input_ids": codebook_rows, "attention_mask": left_out},
    "perceiver": {"inputs": perceiver_input, "pixel_values": of_shape("num_channels", 224, 224)},
    "pix2struct": {"attention_mask": patch_mask},
    "pix2struct_vision_model": {"attention_mask": patch_mask},
    "qwen3_asr_encoder": {"input_features": spectrogram_bins_first},
    "seggpt": dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), half_images),
    "speech_to_text": {"input_features": of_shape("seq", "input_feat_per_channel")},
    "speecht5": {
        "input_values": speecht5_input,
        "decoder_input_values": speecht5_decoder_input,
    },
    "superglue": {"pixel_values": image_pairs},
    "timesfm": {
        "past_values": patched_time_series(),
        "past_values_padding": patched_time_series(dtype=INT),
        "freq": of_shape(1, dtype=INT),
    },
    "timesfm2_5": {"past_values": patched_time_series()},
    "udop": {"bbox": of_shape("seq", 4)},
    "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": of_shape("hidden_size", "seq")},
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": waveform},
    "voxtral_realtime": {
        "input_features": lambda sizes: constant_floats(
            sizes, sizes.num_bins, sizes.seq * sizes.config_int("audio_length_per_tok", default=8)
        )
    },
    "xmod": {"lang_ids": of_shape(dtype=INT)},
}
"""By model type: arguments with another meaning, or needed although they have a default."""

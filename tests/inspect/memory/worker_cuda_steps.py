"""Steps on torch's own CUDA backend, where torch is built with CUDA and there is no GPU: their
peaks against those of ``estimate``. ``tests/cuda_stand_in`` stands in for CUDA: kernels do nothing,
and all else is torch's own code, so the bytes are those of a GPU.

    python -m tests.inspect.memory.worker_cuda_steps            compare all models of transformers
    ... worker_cuda_steps --record                       write cuda_steps.json for this torch

Each step runs in a fork of a process that has imported torch and not begun to use CUDA.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.cuda_stand_in.build import run_with_cuda
from tests.inspect.memory.memory_oracle import loss_of
from tests.inspect.small_models import MODELS, model_and_inputs

RECORDED = Path(__file__).parent / "cuda_steps.json"
KINDS = ("training", "autocast", "bfloat16", "checkpointing", "forward", "inference")
GPUS = {8: "a100-80gb", 9: "h100-80gb"}
NUM_STEPS = 3
Case = tuple[str, str]
"""A model, and what is done with it."""

ARCHITECTURES = (
    "albert", "bart", "beit", "bert", "bloom", "camembert", "clip_text_model", "clip_vision_model",
    "codegen", "cohere", "convbert", "convnext", "data2vec-text", "deberta", "deberta-v2", "deit",
    "dinov2", "distilbert", "electra", "ernie", "falcon", "gemma", "gemma2", "gemma3_text", "glm",
    "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite", "hubert", "layoutlm", "llama",
    "marian", "mbart", "mistral", "mixtral", "mobilebert", "mpnet", "mpt", "mt5", "nystromformer",
    "olmo", "olmo2", "opt", "pegasus", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "regnet", "rembert", "resnet", "roberta", "roformer", "segformer", "siglip_vision_model",
    "smollm3", "stablelm", "starcoder2", "swin", "t5", "vit", "vit_mae", "wav2vec2", "xglm",
    "xlm-roberta", "xlnet",
)  # fmt: skip


def make(case: Case) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a case, and inputs, on the CPU."""
    name, kind = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = model_and_inputs(name) if name in MODELS else _architecture(name)
    if kind == "bfloat16":
        model = model.bfloat16()
        floats = {k: v for k, v in inputs.items() if v.is_floating_point()}
        inputs = {**inputs, **{k: v.bfloat16() for k, v in floats.items()}}
    if kind == "checkpointing" and hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()
    return model, inputs


def _architecture(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Without masks: models ask whether all of one is set, which no kernel computes."""
    from tests._materialize.architectures import builder
    from torchfake import example_inputs

    torch.manual_seed(0)
    model = builder(name)()
    example = example_inputs(model, batch=4)
    wanted = {k: v for k, v in example.items() if not k.endswith("attention_mask")}
    return model, {k: torch.zeros(v.shape, dtype=v.dtype) for k, v in wanted.items()}


def estimated(case: Case, gpu: str) -> list[int]:
    """The peaks of a case by ``estimate``: allocated and reserved bytes."""
    from torchfake import estimate

    model, inputs = make(case)
    kind = case[1]
    options: dict[str, Any] = {"optimizer": "adamw"}
    if kind in ("forward", "inference"):
        options = {"mode": kind}
        model.train(kind == "forward")
    found = estimate(
        model, inputs, gpu=gpu, autocast="bf16" if kind == "autocast" else None, **options
    )
    assert found.reserved is not None
    return [found.reserved.peak_allocated_bytes, found.reserved.peak_reserved_bytes]


def run_on_cuda(case: Case) -> list[int]:
    """The same of a plain loop on CUDA."""
    model, inputs = make(case)
    _forget_packing()
    model, inputs = model.cuda(), {name: tensor.cuda() for name, tensor in inputs.items()}
    trains, kind = case[1] not in ("forward", "inference"), case[1]
    model.train(kind != "inference")
    optimizer = torch.optim.AdamW(model.parameters()) if trains else None
    torch.cuda.reset_peak_memory_stats()
    for _ in range(NUM_STEPS):
        if optimizer is not None:
            optimizer.zero_grad()
        _run_one(model, inputs, kind, optimizer)
    return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]


def _run_one(model: nn.Module, inputs: dict[str, Any], kind: str, optimizer: Any) -> None:
    is_cast = kind == "autocast"
    cast = torch.autocast("cuda", torch.bfloat16) if is_cast else contextlib.nullcontext()
    with torch.no_grad() if kind == "inference" else contextlib.nullcontext():
        with cast:
            output = model(**inputs)
            loss = loss_of(output) if optimizer is not None else None
        if optimizer is not None and loss is not None:
            loss.backward()
            optimizer.step()


def _forget_packing() -> None:
    """Kernels compute nothing, and so transformers would find several texts in a row."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda *_: None


def _worker() -> None:
    results: list[Any] = []
    for case in json.load(sys.stdin):
        reader, writer = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writer, "w") as out:
                json.dump(_tried(run_on_cuda, tuple(case)), out)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as text:
            written = text.read()
        os.wait()
        results.append(json.loads(written) if written else "the process ended")
    json.dump(results, sys.stdout)


def _tried(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:  # models raise many types
        return f"{type(error).__name__}: {error}"[:200]


def compare(cases: list[Case], major: int) -> dict[Case, tuple[Any, Any]]:
    """What each case takes on CUDA, and what ``estimate`` says."""
    real = run_with_cuda("tests.inspect.memory.worker_cuda_steps", cases, gpu_major=major)
    return {
        case: (peaks, _tried(estimated, case, GPUS[major]))
        for case, peaks in zip(cases, real, strict=True)
    }


def _main() -> None:
    small = [(name, kind) for name in MODELS for kind in KINDS]
    if "--record" in sys.argv:
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        version = ".".join(torch.__version__.split(".")[:2])
        known[version] = {" ".join(c): real for c, (real, _) in compare(small, 8).items()}
        RECORDED.write_text(re.sub(r"\n {3,}|\n  (?=\])", " ", json.dumps(known, indent=1)) + "\n")
        return
    kinds = KINDS if "--all" in sys.argv else ("training", "inference")
    cases = [*small, *((name, kind) for name in ARCHITECTURES for kind in kinds)]
    counts = {"allocated": 0, "reserved": 0, "within 2 % and 5 %": 0, "further": 0, "untold": 0}
    for major in GPUS:
        for case, (real, ours) in compare(cases, major).items():
            _count(counts, f"{GPUS[major]} {' '.join(case)}", real, ours)
    print(counts)
    sys.exit(bool(counts["further"]))


def _count(counts: dict[str, int], name: str, real: Any, ours: Any) -> None:
    if isinstance(real, str) or isinstance(ours, str):
        counts["untold"] += 1
        print(name, "on CUDA:", real, "| here:", ours)
        return
    counts["allocated"] += real[0] == ours[0]
    counts["reserved"] += real[1] == ours[1]
    of_allocated, of_reserved = (b / a for a, b in zip(real, ours, strict=True))
    is_within = abs(of_allocated - 1) <= 0.02 and abs(of_reserved - 1) <= 0.05
    counts["within 2 % and 5 %" if is_within else "further"] += 1
    if real != ours:
        print(f"{name}: {real} on CUDA, {ours} here, {of_allocated:.3f} {of_reserved:.3f}")


if __name__ == "__main__":
    _worker() if "--worker" in sys.argv else _main()

"""Example inputs for every architecture of transformers that can be built at its defaults.

``python tests/bench/inputs_sweep.py``: how many of the bare models run on ``example_inputs``, all
fake, and why the others do not. ``--heads``: models with heads, in training, with labels; those
that give a loss. ``--only`` names some of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers.models.auto import modeling_auto

from torchfake import fake_mode
from torchfake.inspect.inputs.example_inputs import example_inputs

RUNS = "runs"


def bare(only: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The model that AutoModel makes of each architecture's default config."""
    for name in sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES):
        if not only or name in only:
            yield name, lambda name=name: _auto(name)


def _auto(name: str) -> Any:
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))


def heads(only: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each class for a task that one of the auto classes knows, by its default config."""
    found: set[str] = set()
    for mapping in vars(modeling_auto):
        if mapping.startswith("MODEL_") and mapping.endswith("_MAPPING_NAMES"):
            for value in getattr(modeling_auto, mapping).values():
                found.update((value,) if isinstance(value, str) else filter(None, value))
    for name in sorted(only or found):
        if not name.endswith(("Model", "Backbone", "Encoder", "Transformer")):
            yield name, lambda name=name: _head(name)


def _head(name: str) -> Any:
    model_class = getattr(transformers, name)
    config = model_class.config_class()
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # without it, batches are not classified
    return model_class(config)


def outcome(make: Callable[[], Any], options: argparse.Namespace) -> str | None:
    """What came of it: RUNS or the error; None if the model cannot be built."""
    try:
        with fake_mode():
            model = make().train(options.heads)
    except Exception:  # whatever a constructor raises at its defaults
        return None
    try:
        inputs = example_inputs(model, batch=options.batch, seq=options.seq, labels=options.heads)
        with fake_mode():
            output = model(**inputs)
    except Exception as error:  # the finding
        return _said(error)
    loss = getattr(output, "loss", None)
    if options.heads and (loss is None or loss.numel() != 1):
        return "no loss: the output has none"
    return RUNS


def _said(error: Exception) -> str:
    inside = [f for f in traceback.extract_tb(error.__traceback__) if "transformers" in f.filename]
    where = f" at {os.path.basename(inside[-1].filename)}:{inside[-1].lineno}" if inside else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:110]}{where}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", action="store_true", help="with heads, labels and a loss")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    for name, make in (heads if options.heads else bare)(options.only):
        gc.collect()
        said = outcome(make, options)
        if said is None:
            continue
        counts[said.partition(":")[0]] += 1
        if said != RUNS:
            print(f"{name}: {said}", flush=True)
    total = sum(counts.values())
    print(f"\n{counts[RUNS]} of {total} run ({counts[RUNS] / max(total, 1):.1%}), ", end="")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for kind, count in counts.most_common():
        print(f"  {kind}: {count}")


if __name__ == "__main__":
    sys.exit(main())

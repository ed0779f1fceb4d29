"""Example inputs for the models of timm, torchvision and diffusers, at their defaults.

``python tests/bench/library_inputs_sweep.py timm``: the smallest model of each family of timm;
``torchvision``: every builder; ``diffusers``: every model class. How many run on
``example_inputs``,
all fake, and why the others do not. ``--only`` names some of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from torchfake import fake_mode
from torchfake.inspect.inputs.example_inputs import example_inputs
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.resolve import resolve


def of_timm() -> Iterator[str]:
    """The smallest model of each family of timm, by its name; a family is a file."""
    import timm

    for file in timm.list_modules():
        if names := timm.list_models(module=file):
            yield min(names, key=lambda name: (_size_in(name), len(name)))


def _size_in(name: str) -> int:
    """The place of the first word for a size in a name; names without one are last."""
    sizes = ("test", "atto", "nano", "pico", "femto", "xx", "tiny", "_t", "small", "_s", "b0")
    return next((i for i, word in enumerate(sizes) if word in name), len(sizes))


def of_torchvision() -> Iterator[str]:
    import torchvision

    yield from torchvision.models.list_models()


def of_diffusers() -> Iterator[str]:
    import diffusers

    for name in sorted(dir(diffusers)):
        found = getattr(diffusers, name)
        if isinstance(found, type) and issubclass(found, diffusers.ModelMixin):
            if found is not diffusers.ModelMixin:
                yield name


LIBRARIES: dict[str, Callable[[], Iterator[str]]] = {
    "timm": of_timm, "torchvision": of_torchvision, "diffusers": of_diffusers,
}  # fmt: skip


def outcome(library: str, name: str, batch: int) -> str | None:
    """What came of it: "" or the error; None if the model has no defaults to be built by."""
    try:
        module = build(resolve(f"{library}:{name}")).module.eval()
    except Exception:  # whatever a constructor raises at its defaults
        return None
    try:
        inputs = example_inputs(module, batch=batch)
        with fake_mode(answer="typical"), torch.no_grad():
            module(**inputs)
    except Exception as error:  # the finding
        inside = [f for f in traceback.extract_tb(error.__traceback__) if library in f.filename]
        where = f" at {os.path.basename(inside[-1].filename)}:{inside[-1].lineno}" if inside else ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{where}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    number = failed = 0
    for name in options.only or LIBRARIES[options.library]():
        gc.collect()
        said = outcome(options.library, name, options.batch)
        if said is None:
            continue
        number, failed = number + 1, failed + bool(said)
        print(name, file=sys.stderr, flush=True)
        if said:
            print(f"{name}: {said}", flush=True)
    print(f"\n{number - failed} of {number} run, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())

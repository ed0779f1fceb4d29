"""Models of the Hugging Face Hub: reads the config and the headers of the weights, nothing else.

Input: an id, ``ORGANISATION/NAME`` or ``ORGANISATION/NAME@REVISION``. Output: the path of its
config in the cache of huggingface_hub, and the tensors in its safetensors files. Invariant: the
cache is searched first; no weights are downloaded; no code of the repository runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torchfake.errors import CheckpointError, MissingExtraError, TargetError
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.targets.saved_tensors import SavedTensor, saved_tensors_in, tensor_of_header

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of an id, as paths that do not exist may have too."""
    return _ID.fullmatch(text) is not None


def hub_config(text: str) -> Path:
    """The path of a model's config in the cache, to which it is downloaded if necessary.

    Raises:
        TargetError: if there is no such model, or it is not in the cache and there is no network.
        MissingExtraError: if huggingface_hub is not installed.
    """
    repo, revision = _parsed(text)
    cached = _cached(repo, "config.json", revision)
    if cached is not None:
        return cached
    hub = _hub()
    try:
        # fails at once without a network, where the download would retry for half a minute
        hub.get_hf_file_metadata(hub.hf_hub_url(repo, "config.json", revision=revision))
        return Path(hub.hf_hub_download(repo, "config.json", revision=revision))
    except Exception as error:  # an error of the network, the Hub or the disk
        raise TargetError(_not_there(text, error)) from error


def hub_tensors(text: str, config: Path) -> Callable[[], dict[str, SavedTensor]]:
    """A function that reads the headers of a model's weights: from the files beside its config in
    the cache if they exist, otherwise from the Hub, some kilobytes of each file.
    """
    return partial(_tensors, text, config)


def _tensors(text: str, config: Path) -> dict[str, SavedTensor]:
    if any(config.parent.glob("*.safetensors")):
        return saved_tensors_in(str(config.parent))
    repo, revision = _parsed(text)
    try:
        read: Any = _hub().get_safetensors_metadata
        files = read(repo, revision=revision).files_metadata
    except Exception as error:
        raise CheckpointError(
            f"the headers of its weights cannot be read ({one_line(error)})"
        ) from error
    return {
        name: tensor_of_header(info.shape, info.dtype)
        for file in files.values()
        for name, info in file.tensors.items()
    }


def _parsed(text: str) -> tuple[str, str | None]:
    repo, at, revision = text.partition("@")
    return repo, revision if at else None


def _cached(repo: str, name: str, revision: str | None) -> Path | None:
    find: Any = _hub().try_to_load_from_cache
    found = find(repo, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(
            'a Hugging Face Hub id needs huggingface_hub: pip install "torchfake[hf]"'
        ) from error
    return huggingface_hub


def _not_there(text: str, error: Exception) -> str:
    """The message for an error of the Hub: the model does not exist, or the Hub is unreachable."""
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return f"there is no folder {text!r}, and no model of that id on the Hub ({kind})"
    if kind in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
        return f"{text} has no config.json on the Hub, so it is not known how to build it"
    if kind == "GatedRepoError":
        return f"{text} is gated: ask for access on its page, and log in with `hf auth login`"
    return (
        f"there is no folder {text!r}; as a Hugging Face Hub id, it is not in the cache, and the "
        f"Hub cannot be reached ({kind}): give the path of a config.json, or run `hf download "
        f"{text} config.json` where there is a network"
    )

"""The names by which pickles refer to the functions that rebuild fakes.

Input: ``load_fake`` and ``load_storage``. Output: both under the module names of the first
release, and allowed for ``torch.load(weights_only=True)``. Invariant: the names in a pickle are a
file format: they stay when a function moves, so that pickles of one release load in another.
Called by: nobody; ``torchfake/__init__`` imports it once.
"""

from __future__ import annotations

import torch

from torchfake._core.pickle_names import publish
from torchfake._core.storage import load_storage
from torchfake._tensor.fake_tensor import load_fake
from torchfake._tensor.storages import load_typed, load_untyped

for function, module in (
    (load_fake, "torchfake._tensor"),
    (load_storage, "torchfake._metadata"),
    (load_typed, "torchfake._tensor"),
    (load_untyped, "torchfake._tensor"),
):
    publish(function, module)
    function.__module__ = module  # new pickles have the same name
torch.serialization.add_safe_globals([load_fake, load_storage, load_typed, load_untyped])

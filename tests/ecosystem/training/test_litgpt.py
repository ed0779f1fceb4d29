"""litgpt: every config, at a reduced size, on fakes; deferred as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from litgpt.config import Config, configs
from litgpt.model import GPT

from torchfake import deferred_init, errors, fake_mode, is_fake, materialize_module

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"n_layer": 2, "padded_vocab_size": 64, "block_size": 32}
NAMES = [config["name"] for config in configs]


@pytest.mark.parametrize("name", NAMES)
def test_built_and_run(name: str) -> None:
    config = Config.from_name(name, **SMALL)
    with fake_mode():
        model = GPT(config)
        tokens = torch.arange(8).view(1, 8)
        if "MoE" in config.mlp_class_name:  # asks which tokens each expert has
            with pytest.raises(errors.UnknownValueError, match="nonzero"):
                model(tokens)
            return
        assert model(tokens).shape == (1, 8, 64)
    assert is_fake(model)


@pytest.mark.parametrize("name", ["pythia-14m", "Llama-3.2-1B", "gemma-2-2b", "Qwen2.5-0.5B"])
def test_deferred_as_in_eager(name: str) -> None:
    small: dict[str, Any] = {
        "n_embd": 32,
        "n_head": 4,
        "n_query_groups": 4,
        "intermediate_size": 64,
    }
    config = Config.from_name(name, **SMALL, **small)
    torch.manual_seed(0)
    eager = GPT(config)
    torch.manual_seed(0)
    model = materialize_module(deferred_init(GPT, config))
    pairs = zip(model.state_dict().values(), eager.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    tokens = torch.arange(8).view(1, 8)
    assert torch.equal(model(tokens), eager(tokens))

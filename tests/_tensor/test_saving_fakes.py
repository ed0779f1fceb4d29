"""Files of safetensors cannot be written of plain fakes: a ValueError says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file, save_model

from torchfake import deferred_init, fake_like, fake_mode
from torchfake.errors import UnknownValueError


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_fake_is_refused(tmp_path: Path, is_inside: bool) -> None:
    file = tmp_path / "model.safetensors"
    with fake_mode():
        made = torch.nn.Linear(300, 400)
        if is_inside:
            with pytest.raises(UnknownValueError, match="save_materialized"):
                save_file(made.state_dict(), file)
    for module in (made, fake_like(torch.nn.Linear(3, 400))):
        with pytest.raises(UnknownValueError, match="safetensors writes values"):
            save_file(module.state_dict(), file)
        with pytest.raises(UnknownValueError, match='save_strategy="no"'):
            save(module.state_dict())
        with pytest.raises(ValueError, match="safetensors writes values"):
            save_model(module, str(file))


def test_a_deferred_module_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.nn.Linear(3, 4)
    torch.manual_seed(0)
    save_file(deferred_init(torch.nn.Linear, 3, 4).state_dict(), tmp_path / "a.safetensors")
    assert torch.equal(load_file(tmp_path / "a.safetensors")["weight"], expected.weight)


class Sums(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(5), "labels": torch.arange(5)}


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_ends_well_without_checkpoints(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 100}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    options = {"max_steps": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}

    def train(**more: Any) -> Any:
        with fake_mode(answer="typical"):
            arguments = transformers.TrainingArguments(str(tmp_path), **options, **more)
            model = transformers.GPT2LMHeadModel(config)
            return transformers.Trainer(model, arguments, train_dataset=Sums()).train()

    assert train(save_strategy="no").global_step == 2
    with pytest.raises(UnknownValueError, match='save_strategy="no"'):
        train()

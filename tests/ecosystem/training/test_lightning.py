"""Lightning: Fabric and the Trainer, on fakes and deferred: init_module, steps, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.pytorch import callbacks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.programs import assert_program
from torchfake import fake_mode, is_fake

pytestmark = pytest.mark.filterwarnings("ignore")
QUIET = {
    "devices": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def batches() -> Any:
    return DataLoader(TensorDataset(torch.randn(8, 6), torch.randn(8, 4)), batch_size=4)


class Model(lightning.LightningModule):
    """A network that is trained, validated and asked for predictions; it logs if it is told to."""

    def __init__(self, rate: float = 0.1, logs: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = network()

    def training_step(self, batch: Any, _index: int) -> Any:
        loss = F.mse_loss(self.network(batch[0]), batch[1])
        if self.hparams["logs"]:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        loss = F.mse_loss(self.network(batch[0]), batch[1])
        if self.hparams["logs"]:
            self.log("validated", loss)

    def predict_step(self, batch: Any, _index: int) -> Any:
        return self.network(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["rate"])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def with_fabric(fabric: Fabric, *, empty: bool | None = None) -> Any:
    with fabric.init_module(empty_init=empty):
        model = network()
    optimizer: Any = torch.optim.AdamW(model.parameters())
    model, optimizer = fabric.setup(model, optimizer)
    for inputs, labels in fabric.setup_dataloaders(batches()):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), labels)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
    return model.module, fabric.all_reduce(loss.detach())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_fabric(precision: Any) -> None:
    assert_program(lambda: with_fabric(Fabric(accelerator="cpu", devices=1, precision=precision)))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("accelerator", ["cuda", "auto"])
def test_fabric_on_fake_cuda(accelerator: Any, precision: Any) -> None:
    with fake_mode(fake_cuda=True):
        fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
        model, loss = with_fabric(fabric, empty=True)
        assert fabric.device == loss.device == torch.device("cuda:0")
        assert is_fake(model)


def trained(model: Any = None, validate: bool = True, **options: Any) -> Any:
    trainer = lightning.Trainer(**{"accelerator": "cpu", **QUIET, **options})
    with trainer.init_module():
        model = model or Model()
    trainer.fit(model, batches(), batches() if validate else None)
    return model.network, trainer.global_step


@pytest.mark.parametrize(
    "options",
    [
        {"fast_dev_run": True},
        {"max_epochs": 2, "gradient_clip_val": 0.5},
        {"max_epochs": 1, "accumulate_grad_batches": 2, "precision": "bf16-mixed"},
        {"max_epochs": 1, "precision": "bf16-true", "validate": False},
        {"max_epochs": 3, "callbacks": "StochasticWeightAveraging"},
        {"max_epochs": 1, "callbacks": "WeightAveraging"},
        {"max_epochs": 1, "callbacks": "ModelPruning"},
    ],
    ids=str,
)
def test_trainer(options: dict[str, Any]) -> None:
    of_callback: dict[str, tuple[Any, ...]] = {
        "StochasticWeightAveraging": (0.01, 1), "ModelPruning": ("l1_unstructured",),
    }  # fmt: skip

    def program() -> Any:
        found = dict(options)
        if name := found.pop("callbacks", None):
            found["callbacks"] = [getattr(callbacks, name)(*of_callback.get(name, ()))]
        return trained(**found)

    assert_program(program)


def test_trainer_that_logs_and_may_stop_early() -> None:
    def program() -> Any:
        early = callbacks.EarlyStopping("validated")
        return trained(Model(logs=True), max_epochs=2, callbacks=[early])

    assert_program(program, answer="typical")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_trainer_on_fake_cuda(precision: str) -> None:
    with fake_mode(fake_cuda=True):
        model, steps = trained(accelerator="cuda", max_epochs=1, precision=precision)
        assert is_fake(model)
        assert steps == 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "model.ckpt"
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **QUIET)
    trainer.fit(Model(), batches())
    trainer.save_checkpoint(path)
    return path


def test_checkpoints(checkpoint: Path) -> None:
    def program() -> Any:
        model = Model.load_from_checkpoint(checkpoint, map_location="cpu")
        again, trainer = Model(), lightning.Trainer(accelerator="cpu", max_epochs=2, **QUIET)
        trainer.fit(again, batches(), ckpt_path=checkpoint)
        predicted = trainer.predict(again, batches())
        return model.network, again.network, trainer.global_step, predicted

    assert_program(program)

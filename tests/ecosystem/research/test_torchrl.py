"""torchrl: the losses of reinforcement learning, with the networks that they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import Bounded, OneHot
from torchrl.modules import (
    Actor,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    CQLLoss,
    DDPGLoss,
    DQNLoss,
    IQLLoss,
    PPOLoss,
    ReinforceLoss,
    SACLoss,
    TD3Loss,
)

from tests.ecosystem.families import assert_family

NUM_OBSERVED, NUM_ACTIONS, BATCH = 4, 3, 5


def actor() -> Any:
    network = nn.Sequential(nn.Linear(NUM_OBSERVED, 2 * NUM_ACTIONS), NormalParamExtractor())
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(
        module=module, in_keys=["loc", "scale"], distribution_class=TanhNormal,
        return_log_prob=True, spec=spec(),
    )  # fmt: skip


def deterministic() -> Any:
    return Actor(nn.Linear(NUM_OBSERVED, NUM_ACTIONS), spec=spec())


def spec() -> Any:
    return Bounded(-torch.ones(NUM_ACTIONS), torch.ones(NUM_ACTIONS), (NUM_ACTIONS,))


def value() -> Any:
    return ValueOperator(nn.Linear(NUM_OBSERVED, 1), in_keys=["observation"])


class OfPairs(nn.Module):
    """A value of an observation and an action."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(NUM_OBSERVED + NUM_ACTIONS, 1)

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([observation, action], -1))  # type: ignore[no-any-return]


def quality() -> Any:
    return ValueOperator(OfPairs(), in_keys=["observation", "action"])


LOSSES: dict[str, Any] = {
    "ppo": lambda: PPOLoss(actor(), value()),
    "clipped_ppo": lambda: ClipPPOLoss(actor(), value()),
    "a2c": lambda: A2CLoss(actor(), value()),
    "reinforce": lambda: ReinforceLoss(actor(), value()),
    "sac": lambda: SACLoss(actor(), quality(), action_spec=spec()),
    "cql": lambda: CQLLoss(actor(), quality(), action_spec=spec()),
    "iql": lambda: IQLLoss(actor(), quality(), value()),
    "ddpg": lambda: DDPGLoss(deterministic(), quality()),
    "td3": lambda: TD3Loss(deterministic(), quality(), action_spec=spec()),
    "dqn": lambda: DQNLoss(
        QValueActor(nn.Linear(NUM_OBSERVED, NUM_ACTIONS), spec=OneHot(NUM_ACTIONS)),
        action_space=OneHot(NUM_ACTIONS), delay_value=True,
    ),
}  # fmt: skip


class Trained(nn.Module):
    """A loss, computed of a batch: the sum of all losses that it has."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.loss = LOSSES[name]()

    def forward(self, observed: torch.Tensor, after: torch.Tensor, reward: torch.Tensor) -> Any:
        batch = {"observation": observed, "action": torch.rand(BATCH, NUM_ACTIONS) - 0.5}
        if self.name == "dqn":
            chosen = torch.arange(BATCH) % NUM_ACTIONS
            batch["action"] = nn.functional.one_hot(chosen, NUM_ACTIONS)
        batch["action_log_prob"] = torch.zeros(BATCH)
        ended = torch.zeros(BATCH, 1, dtype=torch.bool)
        following = {"observation": after, "reward": reward, "done": ended, "terminated": ended}
        given = TensorDict({**batch, "next": TensorDict(following, [BATCH])}, [BATCH])
        found = self.loss(given)
        return sum(loss.sum() for key, loss in found.items() if key.startswith("loss"))


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    def inputs() -> Any:
        return torch.randn(BATCH, 4), torch.randn(BATCH, 4), torch.randn(BATCH, 1)

    assert_family(lambda: Trained(name), inputs, answer="typical")

"""Distributed training without the devices: what each rank would hold and send.

Enters: a model's builder, a mesh, and what shards the one over the other. Leaves: plain frozen
records. Invariant: nothing here prints or sends, and torch.distributed is left as it was found.
"""

from torchfake.distributed import shown as shown  # a plan's text, registered by importing it
from torchfake.distributed.ledger import Traffic as Traffic
from torchfake.distributed.plan import Plan as Plan
from torchfake.distributed.plan import plan as plan
from torchfake.distributed.rank_plan import RankPlan as RankPlan

__all__ = ["Plan", "RankPlan", "Traffic", "plan"]

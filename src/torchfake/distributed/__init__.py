"""Distributed training without the devices: what each rank would hold and send.

Input: a function that builds a model, a mesh, and a function that shards the model over the mesh.
Output: plain frozen records. Invariant: nothing here prints or sends, and the state of
torch.distributed is the same afterwards as before.

Files, in the order in which data flows:

    plan                the public function: checks its arguments, chooses which ranks are run
    plan_record         the record that it returns
    layout              the mesh: coordinates of ranks, axes of groups
    run_ranks           one rank of each kind, in an order in which none waits for another
    run_rank            the step of one rank, run on fakes
    pipelines           steps of which ranks wait for each other's messages
    fake_process_group  this process as one rank of torch's fake process group
    patches             what torch needs to handle DTensors of fakes
    rank_tracker        storages and messages of that step, recorded
    foreach_ops         an optimizer's operators on lists of DTensors, run on their shards
    shard_sizes         which ranks have shards of the same sizes
    rank_plan           what a rank holds and sends, as a record
    joint_schedules     the steps of ranks that wait for each other, timed together
    text                a plan as text
    replicas            what DDP's C++ does, on fakes
    parallelize         the code that lays a model out over a mesh, written for that model
    search              which of many layouts is the fastest that fits
    strategies          layouts that are found in a model, and TARGETs of the command line
"""

from torchfake.distributed.plan import Plan as Plan
from torchfake.distributed.plan import plan as plan
from torchfake.distributed.rank_plan import RankPlan as RankPlan
from torchfake.distributed.rank_tracker import Traffic as Traffic
from torchfake.distributed.search.search import Search as Search
from torchfake.distributed.search.search import search_layouts as search_layouts
from torchfake.distributed.strategies.strategy import Strategy as Strategy
from torchfake.distributed.strategies.target_plan import TargetPlan as TargetPlan
from torchfake.distributed.strategies.target_plan import plan_target as plan_target
from torchfake.inspect.base_record import plain_text, register_on_first_use
from torchfake.inspect.search import peaks_of
from torchfake.inspect.timing.collectives import Links as Links

__all__ = [
    "Links",
    "Plan",
    "RankPlan",
    "Search",
    "Strategy",
    "TargetPlan",
    "Traffic",
    "plan",
    "plan_target",
    "search_layouts",
]

register_on_first_use(plain_text, Plan, "torchfake.distributed.text")
register_on_first_use(plain_text, Search, "torchfake.distributed.search.text")
register_on_first_use(plain_text, TargetPlan, "torchfake.distributed.strategies.text")
register_on_first_use(peaks_of, Plan, "torchfake.distributed.search.sizes")
register_on_first_use(peaks_of, TargetPlan, "torchfake.distributed.search.sizes")

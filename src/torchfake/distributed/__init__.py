"""Distributed training without the devices: the memory and communication of each rank.

Input: a function that builds a model, a mesh, and a function that shards the model over the mesh.
Output: plain frozen records. Invariant: nothing is printed or sent, and the state of
torch.distributed is the same afterwards as before.

Files, in reading order:

    plan             the public function: checks its arguments, and runs the ranks
    layout           the mesh: coordinates of ranks, axes of groups
    joint_schedules  the steps of ranks that wait for each other, timed together
    step_time        the time of all micro-batches of a step, from those that were run
    plan_record      the record that ``plan`` returns
    text             a plan as text
    page             a plan, and a search for one, as a page
    strategy         the public record of a layout: options -> code -> a function for ``plan``
    moved            former modules of the classes in pickles of plans

Packages:

    ranks            the step of one rank of each kind, run on fakes
    ddp              the C++ part of DistributedDataParallel, on fakes
    parallelize      the code that lays a model out over a mesh, generated for the model
    target_plans     a TARGET of the command line, planned with a strategy
    search           the fastest of many layouts that fits
    passes           what a rank does in a pass of a server, and how long it takes
    serving          a model that is served: users, first tokens, throughput, layouts
"""

from torchfake.distributed import moved as _moved  # noqa: F401  names in pickles
from torchfake.distributed.plan import Plan as Plan
from torchfake.distributed.plan import plan as plan
from torchfake.distributed.ranks.rank_plan import RankPlan as RankPlan
from torchfake.distributed.ranks.rank_tracker import Traffic as Traffic
from torchfake.distributed.search.search import Search as Search
from torchfake.distributed.search.search import search_layouts as search_layouts
from torchfake.distributed.serving.offers import ServingSearch as ServingSearch
from torchfake.distributed.serving.search import search_servers as search_servers
from torchfake.distributed.serving.serve import serve as serve
from torchfake.distributed.serving.serving_plan import ServingPlan as ServingPlan
from torchfake.distributed.strategy import Strategy as Strategy
from torchfake.distributed.target_plans.target_plan import TargetPlan as TargetPlan
from torchfake.distributed.target_plans.target_plan import plan_target as plan_target
from torchfake.inspect.memory.peaks import peaks_of
from torchfake.inspect.records.record import (
    drawn_as,
    figure,
    on_page,
    register_on_first_use,
    shown,
)
from torchfake.inspect.timing.collectives import Links as Links

__all__ = [
    "Links",
    "Plan",
    "RankPlan",
    "Search",
    "ServingPlan",
    "ServingSearch",
    "Strategy",
    "TargetPlan",
    "Traffic",
    "plan",
    "plan_target",
    "search_layouts",
    "search_servers",
    "serve",
]

register_on_first_use(shown, Plan, "torchfake.distributed.text")
register_on_first_use(shown, Search, "torchfake.distributed.search.text")
register_on_first_use(shown, TargetPlan, "torchfake.distributed.target_plans.text")
register_on_first_use(shown, ServingPlan, "torchfake.distributed.serving.text")
register_on_first_use(shown, ServingSearch, "torchfake.distributed.serving.search_text")
register_on_first_use(drawn_as, ServingPlan, "torchfake.distributed.serving.curve")
register_on_first_use(figure, ServingPlan, "torchfake.distributed.serving.curve")
register_on_first_use(on_page, Plan, "torchfake.distributed.page")
register_on_first_use(on_page, TargetPlan, "torchfake.distributed.page")
register_on_first_use(on_page, Search, "torchfake.distributed.page")
register_on_first_use(on_page, ServingPlan, "torchfake.distributed.serving.curve")
register_on_first_use(on_page, ServingSearch, "torchfake.distributed.serving.curve")
register_on_first_use(peaks_of, Plan, "torchfake.distributed.search.peaks")
register_on_first_use(peaks_of, TargetPlan, "torchfake.distributed.search.peaks")

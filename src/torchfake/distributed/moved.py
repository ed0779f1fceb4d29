"""The modules that classes of plans were in when they could first be pickled, so that pickles load.

Input: none. Output: the names of classes that have moved since. Invariant: names in pickles are a
file format, so lines are added and never removed.
"""

from torchfake._core.pickle_names import publish_module

HOMES = {
    "rank_tracker": "ranks.rank_tracker",
    "strategies.strategy": "strategy",
    "strategies.batch": "target_plans.batch",
    "strategies.step_time": "step_time",
    "target_plans.step_time": "step_time",
    "search.depths": "search.extrapolation",
}
"""Keys are the former modules, below ``torchfake.distributed``."""

for _name, _home in HOMES.items():
    publish_module(f"torchfake.distributed.{_home}", f"torchfake.distributed.{_name}")

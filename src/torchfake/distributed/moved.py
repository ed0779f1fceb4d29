"""Where classes of plans were when they could first be pickled: pickles of them load.

Input: none. Output: the names of modules that have moved since, for pickles. Invariant: a name in a
pickle is a file format: a line here stays.
"""

from torchfake._core.pickle_names import publish_module

HOMES = {
    "rank_tracker": "ranks.rank_tracker",
    "strategies.strategy": "strategy",
    "strategies.batch": "target_plans.batch",
    "strategies.step_time": "target_plans.step_time",
    "search.depths": "search.extrapolation",
}
"""By the module in ``torchfake.distributed`` in which a class was."""

for _name, _home in HOMES.items():
    publish_module(f"torchfake.distributed.{_home}", f"torchfake.distributed.{_name}")

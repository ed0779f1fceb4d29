"""Earlier modules of record classes, so that old pickles load.

Input: none. Output: the present module for each earlier one, published for pickles. Invariant: a
name in a pickle is a file format, so a line here is never removed.
"""

from torchfake._core.pickle_names import publish_module

HOMES = {
    "describe.tensor_specs": "records.tensor_specs",
    "estimates": "memory.estimate_record",
    "fit": "memory.fit_record",
    **{name: f"memory.{name}" for name in ("reserved", "search", "several_gpus")},
    **{
        name: f"contents.{name}"
        for name in ("changes", "diff", "experts", "renames", "tree", "weights")
    },
    "model_graph": "dataflow.model_graph",
    "run.lifetimes": "storages.lifetimes",
    "run.step": "steps.step",
    "run.workload": "copies.workload",
}
"""The present module by the earlier one, both relative to ``torchfake.inspect``."""

for _name, _home in HOMES.items():
    publish_module(f"torchfake.inspect.{_home}", f"torchfake.inspect.{_name}")

"""Where classes of records were when they could first be pickled: pickles of them load.

Input: none. Output: the names of modules that have moved since, for pickles. Invariant: a name in a
pickle is a file format: a line here stays.
"""

from torchfake._core.pickle_names import publish_module

HOMES = {
    "describe.tensor_specs": "records.tensor_specs",
    "estimates": "memory.estimate_record",
    **{name: f"memory.{name}" for name in ("fit", "reserved", "search", "several_gpus")},
    **{
        name: f"contents.{name}"
        for name in ("changes", "diff", "experts", "renames", "tree", "weights")
    },
    "model_graph": "dataflow.model_graph",
    "run.lifetimes": "storages.lifetimes",
    "run.step": "steps.step",
    "run.workload": "copies.workload",
}
"""By the module in ``torchfake.inspect`` in which a class was."""

for _name, _home in HOMES.items():
    publish_module(f"torchfake.inspect.{_home}", f"torchfake.inspect.{_name}")

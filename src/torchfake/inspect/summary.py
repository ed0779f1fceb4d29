"""What a module is: its tree, its sizes, and for given inputs its outputs and operations.

Enters: a module and, if wanted, inputs. Leaves: a :class:`Summary`, plain data that shows itself as
text, in a terminal and in a notebook. Invariant: the module is not run; a fake copy of it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from torchfake.inspect.flops import Flops, count_flops
from torchfake.inspect.running import Running
from torchfake.inspect.shown import Shown, data_frame
from torchfake.inspect.specs import described, plain_structure
from torchfake.inspect.subject import subject_of
from torchfake.inspect.tree import ModuleNode, count_by, joined, read_module


@dataclass(frozen=True, repr=False)
class Summary(Shown):
    """A module's tree; where inputs were given, what each module gave and how much it did."""

    tree: ModuleNode
    inputs: Any = None  # as described() has it: specs in place of tensors
    outputs: dict[str, Any] = field(default_factory=dict)  # by full name, of the first call
    flops: dict[str, Flops] = field(default_factory=dict)  # by full name, all that is inside too

    @cached_property
    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by dtype, the largest first."""
        return count_by(self.tree, "dtype")

    @cached_property
    def by_device(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by device, the largest first."""
        return count_by(self.tree, "device")

    def flops_of(self, names: list[str]) -> Flops:
        """Of several modules together."""
        found = [self.flops[name] for name in names if name in self.flops]
        return Flops(sum(f.forward for f in found), sum(f.backward for f in found))

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """Everything, ready for JSON; the tree cut `depth` levels down."""
        found = {
            "class_name": self.tree.class_name,
            "totals": self.tree.size.to_dict(),
            "dtypes": _counts(self.by_dtype),
            "devices": _counts(self.by_device),
            "tree": self.tree.to_dict(depth=depth),
        }
        if self.inputs is not None:
            found["inputs"] = plain_structure(self.inputs)
            found["outputs"] = {name: plain_structure(out) for name, out in self.outputs.items()}
            found["flops"] = {name: flops._asdict() for name, flops in self.flops.items()}
        return found

    def to_pandas(self) -> Any:
        """One row for each module, equal blocks folded, as a pandas DataFrame.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame(self._records(self.tree, ""))

    def _records(self, node: ModuleNode, above: str) -> Iterator[dict[str, Any]]:
        name = joined(above, node.names[0])
        flops = self.flops_of([joined(above, other) for other in node.names])
        yield {
            "name": joined(above, node.name),
            "class_name": node.class_name,
            "repeat": node.repeat,
            **node.total.to_dict(),
            "flops_forward": flops.forward,
            "flops_backward": flops.backward,
        }
        for child in node.children:
            yield from self._records(child, name)


def _counts(by_name: dict[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"num_values": n, "bytes": size} for name, (n, size) in by_name.items()}


def summary(
    module: nn.Module,
    *inputs: Any,
    device: torch.device | str | None = None,
    gpu: str | None = None,
) -> Summary:
    """What is in `module`: classes, shapes, counts, bytes, dtypes, devices; equal blocks folded.

    With inputs, also the shapes each module gives, and floating point operations, forward and
    backward, as ``torch.utils.flop_counter.FlopCounterMode`` counts them: a multiplication and an
    addition are two.

    Args:
        module: fake, deferred or real; it is not touched.
        inputs: as its forward takes them; a lone mapping is taken as keyword arguments. See
            :func:`example_inputs`.
        device: where it is to run; where it is, if not given.
        gpu: a profile's name; means ``device="cuda"``.

    Raises:
        TypeError: if `module` is not a module.
        Exception: what the module raises on these inputs; :func:`check` says where.

    >>> found = summary(nn.Linear(3, 4), torch.ones(2, 3))
    >>> found.tree.size.num_parameters, found.flops[""]
    (16, Flops(forward=48, backward=48))
    """
    subject = subject_of(module, inputs, device=device, gpu=gpu)
    tree = read_module(module)
    if not inputs:
        return Summary(tree)
    twin = subject.twin()
    outputs: dict[str, Any] = {}
    for name, part in twin.module.named_modules():
        part.register_forward_hook(partial(_note_output, outputs, name))
    flops = count_flops(twin, Running(twin.module))
    return Summary(tree, described(twin.inputs), outputs, flops)


def _note_output(
    outputs: dict[str, Any], name: str, module: nn.Module, args: Any, output: Any
) -> None:
    if name not in outputs:
        outputs[name] = described(output)

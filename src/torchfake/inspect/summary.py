"""The summary of a module: its tree, its sizes, and with inputs its outputs and FLOPs.

Input: a module and, optionally, inputs. Output: a :class:`Summary`, plain data that is displayed as
text, in a terminal and in a notebook. Invariant: the module is not run; a fake copy of it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import is_whole_number
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import InputsError
from torchfake.inspect.arithmetic.uncounted import Uncounted, uncounted_to_dict
from torchfake.inspect.contents.experts import Active, active_and_inactive, active_to_dict
from torchfake.inspect.contents.tree import ModuleNode, count_by, read_module
from torchfake.inspect.copies.workload import check_module, workload_of
from torchfake.inspect.flops import Flops, count_flops
from torchfake.inspect.inputs.given import (
    Shape,
    inputs_explained,
    inputs_given,
)
from torchfake.inspect.records.messages import answers_to_dict
from torchfake.inspect.records.module_names import join_name
from torchfake.inspect.records.record import Record, data_frame
from torchfake.inspect.records.tensor_specs import to_json, to_specs
from torchfake.observe import Answer, AnswerFunction


@dataclass(frozen=True, repr=False)
class Summary(Record):
    """A module's tree; with inputs, also the output and FLOPs of each module."""

    tree: ModuleNode
    inputs: Any = None  # as to_specs() returns them: specs in place of tensors
    outputs: dict[str, Any] = field(default_factory=dict)  # of the first call, by full name
    flops: dict[str, Flops] = field(default_factory=dict)  # with descendants, by full name
    answers: tuple[Answer, ...] = ()  # to questions about unknown values
    active: Active | None = None  # of a mixture of experts: the parameters used for one token
    depth: int | None = None  # levels of the tree that are shown; None: all
    inactive: dict[str, int] = field(default_factory=dict)
    """Parameters of routed experts that are not used for one token, by full name of the module."""
    uncounted: tuple[Uncounted, ...] = ()  # the operators that ran whose FLOPs are not known
    gpu: CudaProfile | None = None  # the one that was named

    @cached_property
    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by dtype, the largest first."""
        return count_by(self.tree, "dtype")

    @cached_property
    def by_device(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by device, the largest first."""
        return count_by(self.tree, "device")

    def flops_of(self, names: list[str]) -> Flops:
        """The FLOPs of several modules together."""
        found = [self.flops[name] for name in names if name in self.flops]
        recomputed = sum(f.recomputed for f in found)
        return Flops(sum(f.forward for f in found), sum(f.backward for f in found), recomputed)

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """Everything as a dict for JSON, with `depth` levels of the tree."""
        found = {
            "class_name": self.tree.class_name,
            "totals": self.tree.size.to_dict(),
            "dtypes": _counts(self.by_dtype),
            "devices": _counts(self.by_device),
            **active_to_dict(self.active),
            "tree": self.tree.to_dict(depth=depth),
        }
        if self.inputs is not None:
            found["inputs"] = to_json(self.inputs)
            found["outputs"] = {name: to_json(out) for name, out in self.outputs.items()}
            found["flops"] = {name: flops.to_dict() for name, flops in self.flops.items()}
            found.update(uncounted_to_dict(self.uncounted))
            found.update(answers_to_dict(self.answers))
        return found

    def to_pandas(self) -> Any:
        """The tree as a pandas DataFrame, one row per module, identical blocks folded.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame(self._rows(self.tree, ""))

    def active_of(self, names: list[str], num_parameters: int) -> int:
        """The number of parameters used for one token, of several modules with `num_parameters`."""
        return num_parameters - sum(self.inactive.get(name, 0) for name in names)

    def _active_of(self, node: ModuleNode, path: str) -> dict[str, int]:
        if self.active is None:
            return {}
        names = [join_name(path, name) for name in node.names]
        return {"num_active": self.active_of(names, node.total.num_parameters)}

    def _rows(self, node: ModuleNode, path: str) -> Iterator[dict[str, Any]]:
        name = join_name(path, node.names[0])
        flops = self.flops_of([join_name(path, other) for other in node.names])
        yield {
            "name": join_name(path, node.name),
            "class_name": node.class_name,
            "repeat": node.repeat,
            **node.total.to_dict(),
            **self._active_of(node, path),
            "flops_forward": flops.forward,
            "flops_backward": flops.backward,
        }
        for child in node.children:
            yield from self._rows(child, name)


def _counts(by_name: dict[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"num_values": n, "bytes": size} for name, (n, size) in by_name.items()}


def summary(
    module: nn.Module,
    *inputs: Any,
    device: torch.device | str | None = None,
    gpu: str | CudaProfile | None = None,
    answer: str | AnswerFunction | None = None,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
    depth: int | None = None,
) -> Summary:
    """Summarize `module` as a tree of classes, shapes, parameter counts, bytes, dtypes and devices.

    Identical blocks are folded. With inputs, the result also has the output shape of each module
    and its FLOPs, forward and backward, counted as by
    ``torch.utils.flop_counter.FlopCounterMode``: a multiply-add counts as two. Operators whose
    FLOPs are not known are listed in ``uncounted``.

    Args:
        module: fake, deferred or real; it is not modified.
        inputs: the arguments of its ``forward``; a single mapping is used as keyword arguments.
            See :func:`example_inputs`.
        device: the device to run on; by default that of the module.
        gpu: a GPU profile or its name; implies ``device="cuda"``.
        answer: supplies unknown values: ``"typical"`` or a function, as for
            :func:`torchfake.fake_mode`. ``answers`` of the result lists the answers given.
        batch: instead of inputs: a batch size; :func:`example_inputs` generates the inputs.
        seq: instead of inputs: the sequence length of generated inputs.
        input_size: instead of inputs: the shape of a tensor, batch first, or a list of shapes.
        depth: the number of tree levels to show, by default all.

    Raises:
        TypeError: if `module` is not a module.
        InputsError: if inputs cannot be generated, or both inputs and sizes are given.
        Exception: any error that the module raises on these inputs; :func:`check` locates it.

    >>> found = summary(nn.Linear(3, 4), torch.ones(2, 3))
    >>> found.tree.size.num_parameters, found.flops[""]
    (16, Flops(forward=48, backward=48))
    """
    check_module(module)
    if depth is not None and not is_whole_number(depth, 0):
        raise InputsError(f"depth={depth!r} is not a number of levels, 0 or more")
    inputs = inputs_given(module, inputs, batch=batch, seq=seq, input_size=input_size)
    workload = workload_of(module, inputs, device=device, gpu=gpu, answer=answer)
    tree = read_module(module)
    active, inactive = active_and_inactive(module)
    if not inputs:
        return Summary(tree, active=active, depth=depth, inactive=inactive, gpu=workload.gpu)
    fake_copy = workload.fake_copy()
    outputs: dict[str, Any] = {}
    for name, child in fake_copy.module.named_modules():
        child.register_forward_hook(partial(_record_output, outputs, name))
    with inputs_explained(workload, inputs):
        counted = count_flops(fake_copy)
    specs = to_specs(fake_copy.inputs)
    flops, uncounted = counted
    return Summary(
        tree,
        specs,
        outputs,
        flops,
        fake_copy.answers,
        active,
        depth,
        inactive,
        uncounted,
        workload.gpu,
    )


def _record_output(
    outputs: dict[str, Any], name: str, module: nn.Module, args: Any, output: Any
) -> None:
    if name not in outputs:
        outputs[name] = to_specs(output)

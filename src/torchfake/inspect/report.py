"""All that is told about a target: the tree of its modules and what building it cost.

Enters: a TARGET and options, as text. Leaves: a Report, plain data; the model itself is let go.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchfake.inspect.build import build, device_named, dtype_named
from torchfake.inspect.targets import resolve
from torchfake.inspect.tree import ModuleNode, count_by, read_module


@dataclass(frozen=True)
class Report:
    """A model's tree and what building it cost."""

    target: str  # as the user wrote it
    tree: ModuleNode
    resolve_seconds: float  # importing and finding the target
    build_seconds: float  # building the model and reading its tree
    peak_rss_bytes: int | None  # of the process; None where the platform does not say
    peak_rss_increase_bytes: int | None  # by how much building raised it
    notes: tuple[str, ...] = ()

    @property
    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by dtype, the largest first."""
        return count_by(self.tree, "dtype")

    @property
    def by_device(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by device, the largest first."""
        return count_by(self.tree, "device")

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """Everything, ready for JSON; the tree cut `depth` levels down."""
        return {
            "target": self.target,
            "class_name": self.tree.class_name,
            "totals": self.tree.size.to_dict(),
            "dtypes": _counts(self.by_dtype),
            "devices": _counts(self.by_device),
            "resolve_seconds": self.resolve_seconds,
            "build_seconds": self.build_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "peak_rss_increase_bytes": self.peak_rss_increase_bytes,
            "notes": list(self.notes),
            "tree": self.tree.to_dict(depth=depth),
        }


def _counts(by_name: dict[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"num_values": n, "bytes": size} for name, (n, size) in by_name.items()}


def inspect_target(
    text: str, *, overrides: Sequence[str] = (), dtype: str | None = None, device: str = "cpu"
) -> Report:
    """Build what a TARGET names, without its weights, and describe it.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        overrides: ``key=value`` each, for its config or arguments.
        dtype: the floating point dtype to build in, by name.
        device: the device to build on, by name; no GPU is needed.

    Raises:
        TargetError: if the target, an override or the dtype is not understood, or building fails.
        DeviceError: if fakes cannot be on `device`.
        MissingExtraError: if transformers is needed and not installed.

    >>> linear = inspect_target("torch.nn:Linear", overrides=["in_features=3", "out_features=4"])
    >>> linear.tree.size.num_parameters, linear.by_device
    (16, {'cpu': (16, 64)})
    """
    on, of = device_named(device), None if dtype is None else dtype_named(dtype)
    start = time.perf_counter()
    target = resolve(text, overrides=overrides)
    resolved = time.perf_counter()
    built = build(target, dtype=of, device=on)
    tree = read_module(built.module)
    return Report(
        target=text,
        tree=tree,
        resolve_seconds=resolved - start,
        build_seconds=time.perf_counter() - resolved,
        peak_rss_bytes=built.peak_rss_bytes,
        peak_rss_increase_bytes=built.peak_rss_increase_bytes,
        notes=target.notes,
    )

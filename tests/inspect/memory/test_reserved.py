"""Reserved memory of estimates: sums that can be known, and snapshots that torch's own tools read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

from torchfake import estimate, fake_mode, fit, plan, profiles
from torchfake._torch import kernels
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect import Estimate, Fits
from torchfake.inspect.allocator.outside import CONTEXT_BYTES
from torchfake.inspect.allocator.settings import MIB

GPU = "a100-40gb"


def layers(width: int = 2048, depth: int = 4) -> nn.Module:
    with fake_mode():
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


def trained(allocator: str | None = None, *, batch: int = 4096) -> Estimate:
    x = fake_input(batch)
    return estimate(layers(), x, optimizer="adamw", gpu=GPU, allocator=allocator)


def fake_input(batch: int) -> torch.Tensor:
    with fake_mode():
        return torch.empty(batch, 2048)


@pytest.mark.parametrize("allocator", [None, "expandable_segments:True", "max_split_size_mb:64"])
def test_what_is_reserved_holds_what_is_allocated(allocator: str | None) -> None:
    found = trained(allocator)
    reserved = found.reserved
    assert reserved is not None
    assert found.peak_reserved_bytes == reserved.peak_reserved_bytes
    assert reserved.peak_reserved_bytes >= reserved.peak_allocated_bytes >= found.peak_bytes
    assert found.fragmentation_bytes == reserved.fragmentation_bytes
    assert found.nvidia_smi_bytes == reserved.peak_reserved_bytes + CONTEXT_BYTES
    assert reserved.peak_reserved_bytes < 1.5 * found.peak_bytes
    assert found.to_dict()["peak_reserved_bytes"] == reserved.peak_reserved_bytes


@pytest.mark.parametrize("allocator", [None, "expandable_segments:True", "max_split_size_mb:64"])
def test_an_answer_for_one_capacity_is_none_for_another(allocator: str | None) -> None:
    """What was reserved where no request was refused holds for all larger memories, and no other."""
    most = trained(allocator).peak_reserved_bytes
    assert most is not None
    again = trained(allocator)
    for share in (1.5, 1.0, 0.99, 0.95, 1.2, 0.9, 1.0):
        capacity = int(share * most)
        assert again.reserved_within(capacity) == trained(allocator).reserved_within(capacity)
    assert again.reserved == trained(allocator).reserved


def test_where_blocks_are_split_to_the_byte_what_is_allocated_is_the_estimate() -> None:
    """In expandable segments no rest is left on a block, so both sums are of the same storages."""
    found = trained("expandable_segments:True")
    assert found.reserved is not None
    assert found.reserved.peak_allocated_bytes == found.peak_bytes


def test_one_layer_by_hand() -> None:
    """16 MiB of weights, 1 of biases in the small pool, 32 each of input and output, a workspace."""
    with fake_mode():
        layer = nn.Linear(2048, 2048, bias=False)
    found = estimate(layer, fake_input(4096), gpu=GPU)
    workspace = 8519680  # 8.125 MiB: from a segment of 20 MiB
    assert found.peak_bytes == (16 + 32 + 32) * MIB + workspace
    assert found.peak_reserved_bytes == (16 + 32 + 32 + 20) * MIB
    assert found.fragmentation_bytes == 20 * MIB - workspace


def test_a_cpu_reserves_nothing() -> None:
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3))
    assert (found.reserved, found.peak_reserved_bytes, found.nvidia_smi_bytes) == (None, None, None)
    assert found.fragmentation_bytes is None
    with pytest.raises(DeviceError, match=r"the step runs on cpu: give estimate device='cuda'"):
        found.snapshot()


def test_options_are_checked_before_anything_is_run() -> None:
    with pytest.raises(InputsError, match="max_split_size_mb:1 is too small"):
        trained("max_split_size_mb:1")


def test_cached_memory_is_released_where_it_is_short() -> None:
    found = trained()
    assert found.reserved is not None
    capacity = found.reserved.peak_allocated_bytes
    within = found.reserved_within(capacity)
    assert within.peak_reserved_bytes <= capacity
    assert not found.reserved_within(capacity // 2).fits
    assert found.reserved_within(found.reserved.peak_reserved_bytes).num_retries == 0


def on_a_full_gpu(step: Estimate) -> Fits:
    """The fit on a GPU with less memory than is reserved where there is room, and with more than is
    allocated.
    """
    assert step.peak_reserved_bytes is not None
    big = profiles()[GPU]
    small = big._replace(name="small", total_memory=step.peak_reserved_bytes - MIB)
    return fit(step, small, big, vary=None, reserved_bytes=0)


def test_where_only_reserved_memory_is_short_it_fits_by_freeing_cached_blocks() -> None:
    step = trained()
    fits = on_a_full_gpu(step)
    small, big = fits
    assert small.fits
    assert (small.frees_cached_blocks, big.frees_cached_blocks) == (True, False)
    assert small.peak_reserved_bytes < small.with_room_bytes == step.peak_reserved_bytes
    assert "On small, the step fits only if the allocator frees cached blocks" in str(fits)
    only = fit(step, profiles()[GPU]._replace(total_memory=small.total_bytes), vary=None,
               reserved_bytes=0)  # fmt: skip
    assert "yes, by freeing cached blocks: " in str(only).splitlines()[0]
    assert only.to_dict()["fits"][0]["frees_cached_blocks"]


def test_where_what_is_allocated_is_too_much_freeing_does_not_help() -> None:
    step = trained()
    small = profiles()[GPU]._replace(total_memory=step.peak_bytes - MIB)
    (found,) = fit(step, small, vary=None, reserved_bytes=0)
    assert (found.fits, found.frees_cached_blocks) == (False, False)


def test_fit_and_plan_judge_by_what_is_reserved() -> None:
    found = trained()
    assert found.reserved is not None
    assert found.peak_reserved_bytes is not None
    big = profiles()[GPU]
    small = big._replace(total_memory=found.peak_bytes)  # which the step's tensors would just fit
    enough = big._replace(total_memory=found.peak_reserved_bytes)
    verdicts = [fit(found, gpu, vary=None, reserved_bytes=0)[0] for gpu in (small, enough)]
    assert verdicts[1].fits
    assert verdicts[1].headroom_bytes == 0
    assert verdicts[0].fits == found.reserved_within(found.peak_bytes).fits

    planned = plan(
        lambda: nn.Linear(2048, 2048),
        mesh_shape=2,
        inputs=lambda: torch.empty(4096, 2048),
        optimizer="adamw",
        gpu=GPU,
        allocator="expandable_segments:True",
    )
    assert planned.fit is not None
    assert planned.fit.peak_reserved_bytes == planned.peak_reserved_bytes
    assert planned.highest.estimate.step.allocator.expandable_segments
    assert planned.highest.nvidia_smi_bytes >= planned.peak_reserved_bytes + CONTEXT_BYTES


def test_a_program_reserves_what_a_plain_loop_does() -> None:
    model, x = layers(), fake_input(4096)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        output = model(x)
        output.sum().backward()
        optimizer.step()

    assert estimate(step, gpu=GPU).peak_reserved_bytes == trained().peak_reserved_bytes


class OnAnotherStream(nn.Module):
    """Half of its work is on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2048, 2048, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.inner(x)
        del first
        with torch.cuda.stream(torch.cuda.Stream()):
            second = self.inner(x)
        return second


def test_a_stream_does_not_reuse_what_another_has_freed() -> None:
    with fake_mode():
        model, plain = OnAnotherStream(), nn.Linear(2048, 2048, bias=False)
    found = estimate(model, fake_input(4096), gpu=GPU)
    assert sorted({*found.lives.stream.tolist()}) == [0, 1]
    once = estimate(plain, fake_input(4096), gpu=GPU)
    assert found.peak_bytes == once.peak_bytes
    workspace = 0 if kernels.cublas_workspace_is_kept() else 20 * MIB  # a segment of that stream
    assert found.peak_reserved_bytes == once.peak_reserved_bytes + 32 * MIB + workspace


class UsedElsewhere(nn.Module):
    """What its first product gives is read on another stream."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2048, 2048, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.inner(x)
        first.record_stream(torch.cuda.Stream())
        return first


def test_the_streams_that_use_a_tensor_are_recorded() -> None:
    with fake_mode():
        model = UsedElsewhere()
    found = estimate(model, fake_input(4096), gpu=GPU)
    assert [streams for streams in found.lives.used_on if streams] == [(1,)]
    with fake_mode(fake_cuda=True), pytest.raises(NotImplementedError, match="on the CPU"):
        torch.empty(3).record_stream(torch.cuda.Stream())


@pytest.mark.parametrize("allocator", [None, "expandable_segments:True"])
def test_torch_reads_the_snapshot(allocator: str | None, tmp_path: Path) -> None:
    found = trained(allocator)
    found.write_snapshot(tmp_path / "step.pickle")
    snapshot = pickle.loads((tmp_path / "step.pickle").read_bytes())
    assert found.reserved is not None
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert total == found.reserved.peak_reserved_bytes  # nothing is released
    assert f"total_reserved: {_memory_viz.Bytes(total)}" in _memory_viz.segsum(snapshot)
    story = _memory_viz.trace(snapshot)
    assert ("cudaMalloc" in story) is (allocator is None)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert len(plot(snapshot)) > 10_000
    lines = "".join(_memory_viz.memory(snapshot, format_flamegraph=lambda text: text))
    assert f"parameters {2048 * 2048 * 4}" in lines
    segments = snapshot["segments"]
    same = _memory_viz.compare(segments, segments[1:], format_flamegraph=lambda text: text)
    assert "only_before" in same
    assert "only_after" not in same


def test_frames_name_operator_module_and_line() -> None:
    snapshot = trained().snapshot()
    (trace,) = snapshot["device_traces"]
    products = [e for e in trace if e["action"] == "alloc" and "addmm" in e["frames"][0]["name"]]
    assert [frame["name"] for frame in products[0]["frames"][:2]] == ["aten.addmm.default", "0"]
    assert {e["action"] for e in trace} == {
        "alloc", "free_requested", "free_completed", "segment_alloc",
    }  # fmt: skip
    assert [e["time_us"] for e in trace] == list(range(len(trace)))

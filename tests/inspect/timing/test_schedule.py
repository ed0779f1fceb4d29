"""Streams and events run as CUDA runs them; the oracle is arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import estimate, fake_mode, profiles
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.timing.collectives import Links, seconds_of_message
from torchfake.inspect.timing.commands import (
    LAUNCH,
    SEND,
    SYNCHRONIZE,
    Command,
    CommandRecorder,
    Message,
    Place,
)
from torchfake.inspect.timing.efficiency import (
    ENGINE_SHARE,
    KERNEL_SECONDS,
    LAUNCH_SECONDS,
    MODULE_SECONDS,
    OTHER_SECONDS,
    seconds_of,
    shares_of,
)
from torchfake.inspect.timing.hardware import HARDWARE
from torchfake.inspect.timing.schedule import schedule_of
from torchfake.inspect.timing.work import Work

GPU = profiles()["h100-80gb"]
HARD = HARDWARE["h100-80gb"]
COPY = Work("copies", 0, 10**9, torch.float32)
TOOK = seconds_of(COPY, GPU, HARD, shares_of(GPU))
GATHER = Message("all_gather", 10**9, "dp", 8)


def copy_on(stream: int) -> Command:
    return Command(LAUNCH, Place(stream, "forward"), "aten::copy_", COPY)


def run(commands: list[Command]) -> Any:
    found = schedule_of(commands, GPU)
    assert found is not None
    return found


def test_a_stream_runs_one_kernel_after_the_other() -> None:
    found = run([copy_on(0), copy_on(0)])
    assert found.begins.tolist() == pytest.approx([LAUNCH_SECONDS, LAUNCH_SECONDS + TOOK])
    assert found.seconds == pytest.approx(LAUNCH_SECONDS + 2 * TOOK)
    assert found.seconds_by_kind == {"copies": pytest.approx(2 * TOOK)}


def test_streams_run_at_the_same_time() -> None:
    found = run([copy_on(0), copy_on(1)])
    assert found.seconds == pytest.approx(2 * LAUNCH_SECONDS + TOOK)
    assert found.idle_seconds == pytest.approx(LAUNCH_SECONDS)


def test_a_stream_waits_for_an_event() -> None:
    order = CommandRecorder()
    order.commands.append(copy_on(0))
    event = object()
    order.record(event, 0)
    order.wait(1, event)
    order.commands.append(copy_on(1))
    order.wait(1, object())  # never recorded: nothing to wait for
    after = object()
    order.record(after, 1)
    order.wait(2, after)
    order.commands.append(copy_on(2))
    assert run(order.commands).seconds == pytest.approx(LAUNCH_SECONDS + 3 * TOOK)


def test_an_event_that_is_recorded_again_is_another() -> None:
    order = CommandRecorder()
    event = object()
    for _ in range(2):
        order.commands.append(copy_on(0))
        order.record(event, 0)
    order.wait(1, event)
    order.commands.append(copy_on(1))
    assert run(order.commands).seconds == pytest.approx(LAUNCH_SECONDS + 3 * TOOK)


def test_the_host_waits_where_a_value_is_read() -> None:
    found = run([copy_on(0), Command(SYNCHRONIZE, Place(0)), copy_on(1)])
    assert found.seconds == pytest.approx(2 * (LAUNCH_SECONDS + TOOK))


def test_small_kernels_wait_for_the_host() -> None:
    small = Command(LAUNCH, Place(0), "aten::add", COPY._replace(num_bytes=0))
    found = run([small] * 100)
    assert found.seconds == pytest.approx(100 * LAUNCH_SECONDS + KERNEL_SECONDS)
    assert found.idle_seconds == pytest.approx(100 * (LAUNCH_SECONDS - KERNEL_SECONDS) + 2e-6)


def test_the_host_takes_longer_for_views_and_modules_and_less_in_the_backward_pass() -> None:
    small = Command(LAUNCH, Place(0), "aten::add", COPY._replace(num_bytes=0))
    busy = small._replace(others=3, modules=2)
    more = 3 * OTHER_SECONDS + 2 * MODULE_SECONDS
    assert run([busy]).host_seconds == pytest.approx(LAUNCH_SECONDS + more)
    of_engine = busy._replace(place=Place(0, "backward"))
    assert run([of_engine]).host_seconds == pytest.approx(ENGINE_SHARE * (LAUNCH_SECONDS + more))
    again = busy._replace(place=Place(0, "backward", "", True))
    assert run([again]).host_seconds == pytest.approx(LAUNCH_SECONDS + more)


def test_views_and_modules_are_counted_at_the_next_launch() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU()))
        x = torch.empty(2, 3, 4)
    found = estimate(model, x, gpu="h100-80gb", mode="inference")
    (launch,) = (command for command in found.commands if command.what == LAUNCH)
    assert (launch.others, launch.modules) == (1, 4)


def test_what_launches_bound_says_which_batch_would_take_as_long() -> None:
    with fake_mode():
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        small, large = torch.empty(4, 64), torch.empty(1 << 20, 64)
    found = estimate(model, small, gpu="h100-80gb", mode="inference")
    times = found.schedule.times_as_much
    assert times > 2
    assert found.to_dict()["batch_that_takes_as_long"] == 4 * times
    (line,) = (line for line in str(found).splitlines() if line.startswith("  bound by"))
    assert "launches: the host takes" in line
    assert line.endswith(f"; batch {4 * times:,} would take about as long")
    assert " a pass (bound by launches: 0.67 to 1.5 times that); " in str(found)
    assert "bound by launches: 0.67 to 1.5 times that, as the host is fast or slow (" in str(found)
    longer = estimate(model, large, gpu="h100-80gb", mode="inference")
    assert longer.schedule.times_as_much == 1
    assert "bound by" not in str(longer)
    assert " a pass (error not known); " in str(longer)


def test_communication_is_exposed_where_nothing_is_computed() -> None:
    send = Command(SEND, Place(1, "forward"), "all_gather", message=GATHER)
    took = seconds_of_message(GATHER, 8, Links(HARD.link_bytes))
    alone = run([send])
    assert alone.exposed_seconds == pytest.approx(took)
    hidden = run([*[copy_on(0)] * 10, send])
    assert took < 10 * TOOK
    assert hidden.exposed_seconds == pytest.approx(0)
    assert run([send, send]).seconds == pytest.approx(2 * took + LAUNCH_SECONDS)


def test_recomputation_is_no_model_flops() -> None:
    product = Work(
        "matrix products",
        10**9,
        10**6,
        torch.bfloat16,
        products=(Product(1, 1024, 1024, 1e9 / 2 / 1024**2),),
    )
    again = Command(LAUNCH, Place(0, "backward", "", True), "aten::mm", product)
    found = run([again._replace(place=Place(0)), again])
    assert (found.flops, found.model_flops) == (2 * 10**9, 10**9)


def test_a_gpu_of_ones_own_has_no_schedule() -> None:
    assert schedule_of([copy_on(0)], GPU._replace(name="mine")) is None


def test_what_no_group_sends_takes_no_time() -> None:
    alone = GATHER._replace(group_size=1)
    assert seconds_of_message(alone, 1, Links(1e9)) == 0.0


def test_between_nodes_a_ring_has_all_ports_of_a_node() -> None:
    links = Links(450e9, 50e9)
    message = GATHER._replace(num_bytes=10**12, group_size=64)
    one, eight = seconds_of_message(message, 1, links), seconds_of_message(message, 8, links)
    assert one == pytest.approx(10**12 * 63 / 64 / (50e9 * 0.85), rel=1e-3)
    assert eight == pytest.approx(10**12 * 63 / 64 / (8 * 50e9 * 0.85), rel=1e-3)


def test_tiles_that_stand_over_the_edge_are_computed() -> None:
    big = Work("matrix products", 2 * 4096**3, 10, torch.bfloat16)
    big = big._replace(products=(Product(1, 4096, 4096, 4096),))
    narrow = big._replace(flops=2 * 4096 * 4096, products=(Product(1, 4096, 1, 4096),))
    shares = shares_of(GPU)
    per_flop = seconds_of(narrow, GPU, HARD, shares) / narrow.flops
    assert per_flop > 50 * seconds_of(big, GPU, HARD, shares) / big.flops


def test_an_estimate_knows_the_time_of_its_step(tmp_path: Path) -> None:
    with fake_mode():
        model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)])
        x = torch.empty(4096, 4096)
    found = estimate(model, x, optimizer="adamw", gpu="h100-80gb")
    schedule = found.schedule
    assert schedule is not None
    assert found.step_seconds == schedule.seconds
    products = 2 * 4096**3 * (4 + 4 + 3)  # the input has no gradient
    assert schedule.flops == schedule.model_flops == products
    fp32 = products / HARD.vector_flops  # TF32 is off by torch's default
    assert fp32 < schedule.seconds < 3 * fp32
    assert sum(map(schedule.seconds_in, ("forward", "backward", "optimizer"))) == pytest.approx(
        schedule.seconds, rel=0.02
    )
    schedule.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(schedule.commands)
    assert drawn[-1]["ts"] + drawn[-1]["dur"] == pytest.approx(schedule.seconds * 1e6)
    assert estimate(model, x).step_seconds is None  # on the CPU


def test_streams_of_a_program_overlap() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        side = torch.cuda.Stream()
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        x.add_(1)
        with torch.cuda.stream(side):
            y.add_(1)
            done = side.record_event()
        torch.cuda.current_stream().wait_event(done)
        (x + y).sum().item()

    with fake_mode(fake_cuda="h100-80gb"):
        tensors = [torch.empty(1 << 28, device="cuda") for _ in range(2)]
    found = {}
    for waits in (False, True):
        found[waits] = estimate(step, *tensors, gpu="h100-80gb", answer="typical")
    seconds = [found[waits].step_seconds for waits in (False, True)]
    one = seconds_of(Work("elementwise", 0, 2 << 30, torch.float32), GPU, HARD, shares_of(GPU))
    assert seconds[0] == pytest.approx(seconds[1])  # it waited before there was anything to do
    schedule = found[False].schedule
    assert schedule is not None
    first, second = schedule.begins[:2].tolist()
    assert second - first < one / 10  # both add_ at the same time


def test_what_is_sent_without_a_ring() -> None:
    links = Links(450e9)
    exchange = Message("all_to_all", 8 * 10**9, "ep", 8)
    near, far = seconds_of_message(exchange, 8, links), seconds_of_message(exchange, 4, links)
    assert near == pytest.approx(7e9 / 360e9, rel=1e-2)
    assert far == pytest.approx(4e9 / 42.5e9, rel=1e-2)  # half of it, through a port of each GPU
    step = Message("permute", 10**9, "cp", 8)
    assert seconds_of_message(step, 8, links) == pytest.approx(1e9 / 360e9, rel=1e-2)
    assert seconds_of_message(step, 4, links) == pytest.approx(1e9 / 42.5e9, rel=1e-2)


@pytest.mark.parametrize("runs_step", [False, True])
def test_inference_mode_takes_as_long_as_no_grad(runs_step: bool) -> None:
    """Composite operators are timed as their parts: a product is no elementwise operation."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.conv = nn.Linear(4096, 4096), nn.Conv2d(64, 64, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.einsum("ij,kj->ik", self.linear(x), x) @ x, self.conv(y)

    class Decorated(Frozen):
        forward = torch.inference_mode()(Frozen.forward)

    with fake_mode():
        plain, decorated = Frozen().bfloat16(), Decorated().bfloat16()
        inputs = [torch.empty(s, dtype=torch.bfloat16) for s in ((2048, 4096), (4, 64, 56, 56))]
    expected = estimate(plain, *inputs, gpu="h100-80gb")

    def step(*args: torch.Tensor) -> Any:
        with torch.inference_mode():
            return plain(*args)

    found = estimate(step if runs_step else decorated, *inputs, gpu="h100-80gb")
    products = 2 * 2048 * 4096 * (4096 + 2048 + 2048)
    convolution = 2 * 4 * 54 * 54 * 64 * 64 * 9
    for each in (found, expected):
        assert each.schedule is not None
        assert each.schedule.flops == products + convolution
        assert each.uncounted == ()
    assert found.schedule.seconds == pytest.approx(expected.schedule.seconds, rel=0.01)
    names = {command.name for command in found.commands}
    assert names.isdisjoint({"aten::linear", "aten::einsum", "aten::matmul", "aten::conv2d"})

"""Modes among threads, exceptions, other modes and the garbage collector."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor as TorchFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from conftest import all_fake, describe, generators_stand_still
from torchfake import FakeTensor, fake_like, fake_mode, is_fake


def on_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


# Threads.


def test_a_thread_started_inside_does_not_inherit() -> None:
    """A mode holds for the thread that entered it."""
    with fake_mode(fake_cuda=True):
        made = on_another_thread(lambda: torch.ones(2) + 1)
        assert is_fake(torch.ones(2))
    assert not is_fake(made)
    assert made.tolist() == [2.0, 2.0]


def test_fakes_cross_threads() -> None:
    """A fake is used, and its graph run back, on a thread without a mode."""
    with fake_mode():
        module, x = nn.Linear(2, 3), torch.randn(4, 2)
        loss = module(x).sum()
    on_another_thread(loss.backward)
    assert is_fake(module.weight.grad)
    assert is_fake(on_another_thread(lambda: x @ x.mT))


def test_a_mode_of_its_own_on_each_thread() -> None:
    """Interleaved step by step: each sees its own mode's devices, and none after it."""
    barrier = threading.Barrier(2, timeout=30)

    def work(num_devices: int) -> list[Any]:
        seen = []
        for _ in range(20):
            barrier.wait()
            with fake_mode(fake_cuda=num_devices):
                torch.cuda.set_device(num_devices - 1)
                barrier.wait()
                seen.append((torch.cuda.device_count(), torch.ones(1, device="cuda").device.index))
            barrier.wait()
            seen.append(is_fake(torch.ones(1)))
        return seen

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, (2, 5)))
    for num_devices, result in zip((2, 5), results, strict=True):
        assert result == [(num_devices, num_devices - 1), False] * 20


def test_threads_under_stress() -> None:
    """Eight threads enter and leave, some by exceptions, beside threads that compute for real."""
    torch.cuda.is_available()
    before = (torch.load, torch.cuda.is_available, torch.ones)
    errors: list[BaseException] = []
    stop = threading.Event()

    def faker(number: int) -> None:
        for turn in range(30):
            try:
                with fake_mode(fake_cuda=number % 3):
                    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
                    loss = module(torch.randn(2, 4)).sum()
                    loss.backward()
                    assert all_fake([module, module[0].weight.grad, loss])
                    assert torch.arange(number).tolist() == list(range(number))
                    if turn % 5 == 0:
                        raise ValueError
            except ValueError:
                pass
            assert torch.ones(2).sum().item() == 2

    def worker() -> None:
        while not stop.is_set():
            weight = torch.ones(4, 4, requires_grad=True)
            (weight @ torch.ones(4)).sum().backward()
            assert weight.grad.sum().item() == 16
            assert not is_fake(weight.grad)

    def guarded(function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(worker,)) for _ in range(2)]
    fakers = [threading.Thread(target=guarded, args=(faker, n)) for n in range(8)]
    for thread in (*workers, *fakers):
        thread.start()
    for thread in fakers:
        thread.join()
    stop.set()
    for thread in workers:
        thread.join()
    assert not errors
    assert before == (torch.load, torch.cuda.is_available, torch.ones)


# Entering and leaving.


def test_reentrancy() -> None:
    """One mode object, entered inside itself and again later."""
    mode = fake_mode(fake_cuda=2)
    for _ in range(2):
        with mode, mode:
            torch.cuda.set_device(1)
            with mode:
                assert torch.cuda.current_device() == 0
            assert torch.cuda.current_device() == 1
        assert not is_fake(torch.ones(1))


def test_exceptions_leave_the_mode() -> None:
    """Errors of the user's, of an operator's and of ours, at every depth."""

    def user_error() -> None:
        raise KeyError("x")

    def operator_error() -> None:
        torch.ones(2) @ torch.ones(3)

    def unknown_value() -> None:
        bool(torch.randn(5).sum() > 0)

    for program in (user_error, operator_error, unknown_value):
        with pytest.raises((KeyError, RuntimeError, ValueError)), fake_mode(), fake_mode():
            program()
        assert not is_fake(torch.ones(1))


def test_errors_are_eager_s() -> None:
    """What eager refuses is refused, with eager's kind of error and words."""
    # Where the meta kernels have their own words for it, the kind of error is still eager's.
    other_words = {0, 2, 3, 6, 10}
    programs: list[Callable[[], Any]] = [
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).view(3),
        lambda: torch.ones(2) + torch.ones(3),
        lambda: torch.cat([torch.ones(2, 2), torch.ones(3, 3)]),
        lambda: torch.ones(2)[5],
        lambda: torch.ones(2).sum(4),
        lambda: F.conv2d(torch.ones(1, 3, 4, 4), torch.ones(2, 4, 3, 3)),
        lambda: torch.empty(-1),
        lambda: torch.ones(2, requires_grad=True).add_(1),
        lambda: torch.ones(2).backward(),
        lambda: nn.Linear(2, 3)(torch.ones(3)),
        lambda: torch.ones(2).expand(3, 3),
        lambda: torch.ones(2, dtype=torch.int64).requires_grad_(),
    ]
    for number, program in enumerate(programs):
        with pytest.raises(Exception) as real:  # noqa: PT011
            program()
        with pytest.raises(Exception) as fake, fake_mode():  # noqa: PT011
            program()
        assert fake.type is real.type
        assert (str(fake.value) != str(real.value)) is (number in other_words)


def test_decorator() -> None:
    """Each call is in a mode of its own; recursion, arguments and the name are kept."""

    @fake_mode(fake_cuda=2)
    def build(depth: int, *, width: int = 2) -> list[torch.Tensor]:
        """Builds."""
        torch.cuda.set_device(depth % 2)
        deeper = build(depth - 1, width=width) if depth else []
        assert torch.cuda.current_device() == depth % 2
        return [torch.ones(width, device="cuda"), *deeper]

    made = build(3, width=4)
    assert [t.device.index for t in made] == [1, 0, 1, 0]
    assert all_fake(made)
    assert (build.__name__, build.__doc__) == ("build", "Builds.")
    assert not is_fake(torch.ones(1))


def test_a_mode_left_out_of_order_by_a_generator() -> None:
    """A generator suspended in its mode hands it to its caller, as any context manager does."""

    def items() -> Any:
        with fake_mode():
            yield torch.ones(1)

    running = items()
    assert is_fake(next(running))
    running.close()
    assert not is_fake(torch.ones(1))


@pytest.mark.parametrize("order", ["before", "after"])
def test_device_contexts(order: str) -> None:
    """``with torch.device`` around and inside, meta and cpu."""
    device, fake = torch.device("meta"), fake_mode()
    outer, inner = (device, fake) if order == "before" else (fake, device)
    with outer, inner:
        made, linear = torch.ones(2), nn.Linear(2, 2)
        explicit = torch.ones(2, device="cpu")
    assert made.is_meta
    assert linear.weight.is_meta
    assert is_fake(explicit)
    with torch.device("cpu"), fake_mode():
        assert is_fake(torch.ones(2))
    assert not torch.ones(1).is_meta


# Generators.


def draws() -> Any:
    torch.rand(3), torch.randn(100), torch.randint(9, (4,)), torch.randperm(7)
    torch.empty(50).normal_().uniform_().exponential_().bernoulli_()
    F.dropout(torch.ones(10), 0.5)
    nn.Linear(3, 3), nn.init.trunc_normal_(torch.empty(5)), torch.multinomial(torch.ones(4), 2)
    torch.distributions.Normal(0.0, 1.0).sample((3,))
    return torch.rand(())


def test_the_global_generator_never_moves() -> None:
    """Inside a mode; nor do fakes move it outside."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with generators_stand_still(), fake_mode():
        draws()
        fake = torch.ones(40)
    with generators_stand_still():
        fake.normal_().bernoulli_()
        F.dropout(fake, 0.5)
        torch.rand_like(fake)
    assert torch.equal(torch.rand(3), expected)


def known_draws() -> list[Any]:
    several = [torch.randint(1000, (5,)), torch.rand(()), torch.randperm(6), torch.randint(9, ())]
    return [draw.tolist() for draw in several]


def test_seeding_inside() -> None:
    """``manual_seed`` is the user's own wish and stays; the draws known after it are eager's."""
    torch.manual_seed(11)
    expected = known_draws()
    with fake_mode():
        torch.manual_seed(11)
        assert known_draws() == expected
    assert torch.initial_seed() == 11


def test_a_generator_of_the_user_s_moves() -> None:
    """What is passed as ``generator=`` is drawn from where the draw is known."""
    mine = torch.Generator().manual_seed(1)
    expected = torch.randperm(8, generator=mine).tolist()
    mine.manual_seed(1)
    with generators_stand_still(), fake_mode():
        assert torch.randperm(8, generator=mine).tolist() == expected


# Other modes.


class Log(TorchDispatchMode):
    """Writes down each operator, and runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.saw_fakes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        self.saw_fakes |= any(isinstance(a, FakeTensor) for a in args)
        return func(*args, **(kwargs or {}))


def computed(ops: list[str]) -> list[str]:
    """The operators that compute. How data from Python arrives differs: fakes lift it in a step."""
    arrives = ("aten.detach", "aten._to_copy", "aten.lift")
    return [op for op in ops if not op.startswith(arrives)]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.GELU()
    )


def train() -> Any:
    module = network()
    output = module(torch.randn(2, 3, 8, 8))
    output.sum().backward()
    return module, output


@pytest.mark.parametrize("order", ["above", "below"])
def test_dispatch_modes_see_what_they_see_in_eager(order: str) -> None:
    """A user's mode is above ours wherever it is entered, and sees eager's operators."""
    with Log() as eager:
        expected = describe(train())
    log, fake = Log(), fake_mode()
    outer, inner = (fake, log) if order == "above" else (log, fake)
    with outer, inner:
        result = train()
    assert describe(result) == expected
    assert all_fake(result)
    assert log.saw_fakes
    assert computed(log.ops) == computed(eager.ops)
    with Log() as after:
        result[0](fake_like(torch.randn(2, 3, 8, 8)))
    assert "aten.convolution.default" in after.ops


@pytest.mark.parametrize("order", ["above", "below"])
def test_function_modes(order: str) -> None:
    """A user's TorchFunctionMode sees every call, and may answer it."""

    class Halve(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is torch.ones:
                kwargs = {**kwargs, "dtype": torch.float16}
            return func(*args, **kwargs)

    outer, inner = (fake_mode(), Halve()) if order == "above" else (Halve(), fake_mode())
    with outer, inner:
        made = torch.ones(2)
    assert is_fake(made)
    assert made.dtype is torch.float16


FLOP_PROGRAMS: dict[str, Callable[[], Any]] = {
    "train": train,
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.randn(2, 5, 8)] * 3),
    "sdpa": lambda: (
        F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 6, 8).requires_grad_())
        .sum()
        .backward()
    ),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16)(torch.randn(3, 2, 8)).sum().backward()
    ),
    "sdpa_3d": lambda: F.scaled_dot_product_attention(*torch.randn(3, 4, 6, 8)),
    "bmm": lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "einsum": lambda: torch.einsum("bij,bjk->bik", torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "conv_transpose": lambda: nn.ConvTranspose1d(3, 4, 3)(torch.randn(2, 3, 9)).sum().backward(),
}


FLOP_SHORTFALLS: dict[str, Callable[[], bool]] = {
    # torch 2.15 runs the fused CPU kernel for three dims too, fakes the math path: the count is
    # the same and stands under bmm.
    "sdpa_3d": lambda: torch._fused_sdp_choice(*[torch.ones(2, 3, 4)] * 3) != 0,
}


@pytest.mark.parametrize("order", ["above", "below"])
@pytest.mark.parametrize("name", FLOP_PROGRAMS)
def test_flops_are_eager_s(name: str, order: str) -> None:
    """FlopCounterMode counts on fakes what it counts in eager, operator by operator."""
    with FlopCounterMode(display=False) as expected:
        FLOP_PROGRAMS[name]()
    counter, fake = FlopCounterMode(display=False), fake_mode()
    outer, inner = (fake, counter) if order == "above" else (counter, fake)
    with outer, inner:
        FLOP_PROGRAMS[name]()
    assert counter.get_total_flops() == expected.get_total_flops()
    assert name == "sdpa" or expected.get_total_flops() > 0  # the CPU's flash is not counted
    same = counter.get_flop_counts() == expected.get_flop_counts()
    assert same is not (name in FLOP_SHORTFALLS and FLOP_SHORTFALLS[name]())


def test_flops_after_the_mode() -> None:
    """And on fakes that outlived it, per module."""
    with fake_mode():
        module, x = network(), torch.randn(2, 3, 8, 8)
    real = network()
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    with FlopCounterMode(display=False) as expected:
        real(torch.randn(2, 3, 8, 8)).sum().backward()
    assert counter.get_flop_counts() == expected.get_flop_counts()


def test_torch_s_fake_mode_nested() -> None:
    """The innermost of the two modes makes what is made; both are left as they were found."""
    with FakeTensorMode():
        theirs = torch.ones(2)
        with fake_mode():
            ours = torch.ones(2)
            assert isinstance(nn.Linear(2, 2)(ours), FakeTensor)
        assert isinstance(torch.ones(2) + 1, TorchFakeTensor)
    with fake_mode():
        with FakeTensorMode():
            assert isinstance(torch.ones(2) + 1, TorchFakeTensor)
            assert isinstance(nn.Linear(2, 2)(torch.ones(1, 2)), TorchFakeTensor)
        assert isinstance(torch.ones(2) + 1, FakeTensor)
    assert isinstance(theirs, TorchFakeTensor)
    assert isinstance(ours + 1, FakeTensor)
    assert type(torch.ones(2)) is torch.Tensor


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_profiler_and_anomaly_modes() -> None:
    """Debug contexts of torch's run over fakes."""
    with fake_mode():
        with torch.autograd.detect_anomaly(check_nan=False):
            train()
        with torch.autograd.set_detect_anomaly(False), torch.autograd.graph.save_on_cpu():
            train()


# Garbage.


def assert_no_cycles(program: Callable[[], Any]) -> None:
    """``program`` leaves nothing for the collector that eager does not leave."""
    program()  # what is made once
    counts = []
    for run in (program, lambda: None):
        gc.collect()
        gc.disable()
        try:
            run()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            counts.append([type(o) for o in gc.garbage if isinstance(o, torch.Tensor)])
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert counts[0] == counts[1] == []


def loop() -> None:
    module = nn.Linear(3, 3)
    for _ in range(3):
        x = torch.randn(2, 3, requires_grad=True)
        y = module(x)[0].view(-1).relu()
        y.sum().backward()
        z = torch.arange(6).view(2, 3)
        z.add_(1).tolist()


def test_no_cycles() -> None:
    """Inside a mode, after it, and when fakes are copied."""
    with fake_mode():
        module = nn.Linear(3, 3)

    def inside() -> None:
        with fake_mode(fake_cuda=True):
            loop()

    def outside() -> None:
        module(fake_like(torch.ones(2, 3))).sum().backward()
        module.zero_grad()
        (module.weight.detach() + 1).to("cuda:1").t_()

    assert_no_cycles(inside)
    assert_no_cycles(outside)


def test_a_fake_dies_at_once() -> None:
    """With its last reference, no collector needed; so do its storage and its mode."""
    gc.collect()
    gc.disable()
    try:
        with fake_mode() as mode:
            tensor = torch.ones(3)
            view = tensor[1:]
            result = (nn.Linear(3, 3)(tensor) + view.sum()).relu()
        refs = [weakref.ref(o) for o in (tensor, view, result, tensor._fake_storage, mode)]
        untyped = weakref.ref(tensor.untyped_storage())
        del tensor, view, result, mode
        assert [ref() for ref in refs] == [None] * len(refs)
        assert untyped() is None
    finally:
        gc.enable()


def test_no_fake_is_kept_behind() -> None:
    """No cache or global holds a tensor, whatever was done with it."""

    def count() -> int:
        gc.collect()
        return sum(issubclass(type(o), FakeTensor) for o in gc.get_objects())

    before = count()
    for _ in range(2):
        with fake_mode():
            loop()
            with pytest.raises(ValueError, match="not known"):
                torch.randn(3).tolist()
            with pytest.raises(RuntimeError):
                torch.ones(2) @ torch.ones(3)
            module = network()
            torch.optim.AdamW(module.parameters(), foreach=True).step()
            del module
    assert count() == before


def test_an_origin_keeps_no_frame_alive() -> None:
    """Where a tensor was made is remembered without the locals of the place."""

    class Local:
        pass

    def make() -> tuple[torch.Tensor, Any]:
        local = Local()
        with fake_mode():
            return torch.randn(3), weakref.ref(local)

    tensor, local = make()
    assert local() is None
    with pytest.raises(ValueError, match=r"test_threads_modes_gc\.py.* in make"):
        tensor.tolist()

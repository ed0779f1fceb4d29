"""CUDA that is not there: devices, training, ``torch.cuda`` inside a mode, and torch after it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import all_fake, describe
from torchfake import errors, fake_mode, is_fake, profiles

CUDA = torch.device("cuda:0")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for the lack of a GPU")


@pytest.fixture(autouse=True)
def _cuda_is_never_started() -> Any:
    """Nothing here may make a CUDA context, nor leave one behind."""
    started = torch.cuda.is_initialized()
    yield
    assert torch.cuda.is_initialized() is started


# Tensors and modules get there.


def in_context(program: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.device("cuda"):
        return program()


FACTORIES: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(3, device="cuda"),
    "index": lambda: torch.ones(3, device=0),
    "device": lambda: torch.zeros(3, device=torch.device("cuda")),
    "named_index": lambda: torch.empty(3, device="cuda:0"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "tensor_of_tensor": lambda: torch.as_tensor(torch.ones(2), device="cuda"),
    "tensor_in_context": lambda: in_context(lambda: torch.as_tensor(torch.ones(2, device="cpu"))),
    "asarray": lambda: torch.asarray([1, 2], device="cuda"),
    "arange": lambda: torch.arange(4, device="cuda"),
    "linspace": lambda: torch.linspace(0, 1, 4, device="cuda"),
    "eye": lambda: torch.eye(4, device="cuda"),
    "full": lambda: torch.full((2,), 3.0, device="cuda"),
    "randn": lambda: torch.randn(2, device="cuda"),
    "randint": lambda: torch.randint(0, 5, (2,), device="cuda"),
    "randperm": lambda: torch.randperm(5, device="cuda"),
    "strided": lambda: torch.empty_strided((2, 3), (1, 2), device="cuda"),
    "tril_indices": lambda: torch.tril_indices(3, 3, device="cuda"),
    "hann": lambda: torch.hann_window(4, device="cuda"),
    "complex": lambda: torch.complex(torch.ones(2), torch.ones(2)).cuda(),
    "like": lambda: torch.ones_like(torch.ones(3), device="cuda"),
    "new": lambda: torch.ones(3).new_zeros(2, device="cuda"),
    "new_tensor": lambda: torch.ones(3).new_tensor([1], device="cuda"),
    "cuda": lambda: torch.ones(3).cuda(),
    "cuda_index": lambda: torch.ones(3).cuda(0),
    "to": lambda: torch.ones(3).to("cuda"),
    "to_index": lambda: torch.ones(3).to(0),
    "to_keyword": lambda: torch.ones(3).to(device="cuda", dtype=torch.float16),
    "to_other": lambda: torch.ones(3).to(torch.ones(1, device="cuda")),
    "type": lambda: torch.ones(3).type("torch.cuda.HalfTensor"),
    "parameter": lambda: nn.Parameter(torch.ones(2, device="cuda")),
    "one_hot": lambda: F.one_hot(torch.arange(3, device="cuda"), 5),
    "cov": lambda: torch.cov(torch.randn(3, 4, device="cuda")),
    "instance_norm": lambda: F.instance_norm(torch.randn(2, 3, 4, 4, device="cuda")),
    "bincount": lambda: torch.nn.functional.pad(torch.ones(2, device="cuda"), (1, 1)),
    "where": lambda: torch.where(torch.ones(2, device="cuda") > 0, 1.0, 0.0),
    "sdpa": lambda: F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 6, 8, device="cuda")),
    "sdpa_causal": lambda: F.scaled_dot_product_attention(
        *torch.randn(3, 2, 4, 6, 8, device="cuda", dtype=torch.float16), is_causal=True
    ),
    "conv": lambda: nn.Conv2d(3, 4, 3, device="cuda")(torch.randn(1, 3, 8, 8, device="cuda")),
    "lstm": lambda: nn.LSTM(3, 4, device="cuda")(torch.randn(5, 1, 3, device="cuda"))[0],
    "cross_entropy": lambda: F.cross_entropy(
        torch.randn(4, 5, device="cuda"), torch.arange(4, device="cuda")
    ),
    "linear": lambda: nn.Linear(3, 4, device="cuda").weight,
    "module_to": lambda: nn.Linear(3, 4).to("cuda").weight,
    "module_cuda": lambda: nn.Linear(3, 4).cuda().weight,
    "module_to_index": lambda: nn.Linear(3, 4).to(0).weight,
    "module_to_empty": lambda: nn.Linear(3, 4, device="meta").to_empty(device="cuda").weight,
}


@pytest.mark.parametrize("fake_cuda", [True, 2, "h100-80gb"])
@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str, fake_cuda: Any) -> None:
    """Every way to name CUDA gives a fake on cuda:0."""
    with fake_mode(fake_cuda=fake_cuda):
        made = FACTORIES[name]()
    assert is_fake(made)
    assert made.device == CUDA
    assert (made.is_cuda, made.is_cpu, made.is_meta, made.get_device()) == (True, False, False, 0)
    assert made.untyped_storage().device == CUDA


def test_second_device() -> None:
    """``fake_cuda=2`` has cuda:1, and no cuda:2."""
    with fake_mode(fake_cuda=2):
        there = torch.ones(3).to("cuda:1")
        assert there.device == torch.device("cuda:1")
        assert (there + 1).device == torch.zeros_like(there).device == there.device
        assert nn.Linear(2, 2, device="cuda:1").weight.get_device() == 1
        assert torch.ones(3).cuda(1).cpu().device == torch.device("cpu")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(3, device="cuda:2")


@pytest.mark.parametrize("index", [None, 0, 1])
def test_device_contexts(index: int | None) -> None:
    """``with torch.device`` entered before the mode, in it, and as the default device."""
    device = torch.device("cuda", index) if index is not None else torch.device("cuda")
    expected = torch.device("cuda", index or 0)

    def made() -> list[torch.Tensor]:
        tensors = [torch.ones(2), torch.tensor([1.0]), torch.arange(3), torch.randn(2)]
        return [*tensors, *nn.Linear(2, 2).parameters(), torch.ones(1) + torch.ones(1)]

    with fake_mode(fake_cuda=2):
        with device:
            inside = made()
        plain = made()
    with device, fake_mode(fake_cuda=2):
        around = made()
    with fake_mode(fake_cuda=2):
        torch.set_default_device(device)
        try:
            default = made()
        finally:
            torch.set_default_device(None)
    assert {t.device for t in (*inside, *around, *default)} == {expected}
    assert {t.device for t in plain} == {torch.device("cpu")}
    assert all_fake([inside, around, default, plain])


def test_explicit_device_wins() -> None:
    """Over a device context, and over the arguments' device."""
    with fake_mode(fake_cuda=2), torch.device("cuda:1"):
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.ones_like(torch.ones(2), device="cuda:0").device == CUDA
        assert torch.ones_like(torch.ones(2, device="cpu")).device.type == "cpu"


def test_meta_stays_meta() -> None:
    """A factory that names meta gives a plain meta tensor, and so does what is made from it."""
    with fake_mode(fake_cuda=True):
        plain = [torch.ones(2, device="meta"), nn.Linear(2, 2, device="meta").weight]
        plain += [torch.ones(2).to("meta"), torch.zeros_like(torch.ones(2), device="meta")]
        plain += [plain[0] + 1, torch.ones_like(plain[0])]
        with torch.device("meta"):
            plain.append(torch.ones(2))
    for tensor in plain:
        assert not is_fake(tensor)
        assert tensor.is_meta
        assert tensor.device == torch.device("meta")


def test_two_devices() -> None:
    """Torch's words and the operator's name; 0-dim CPU tensors go along with anything."""
    with fake_mode(fake_cuda=2):
        on_cpu, on_first, on_second = (torch.ones(3, device=d) for d in ("cpu", 0, 1))
        for a, b in ((on_cpu, on_first), (on_first, on_second)):
            text = (
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{a.device} and {b.device}! (when checking the arguments of aten.add.Tensor)"
            )
            with pytest.raises(RuntimeError, match=re.escape(text)):
                a + b
        for op in (torch.mm, torch.cat, F.linear):
            args = (on_cpu[None], on_first[:, None])
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                op(args) if op is torch.cat else op(*args)
        assert (on_first + torch.tensor(2.0)).device == CUDA
        assert (torch.tensor(2.0) * on_second).device == torch.device("cuda:1")
        assert on_first[torch.tensor([0, 1])].device == CUDA
        on_first.copy_(on_cpu)
        assert on_first.device == CUDA


# The current device and torch.cuda.


def test_current_device() -> None:
    """``cuda`` means the current device; every way to change it does, and each mode has its own."""
    with fake_mode(fake_cuda=3):
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device(1)
        assert torch.ones(1, device="cuda").device == torch.device("cuda:1")
        with torch.cuda.device(2):
            assert torch.cuda.current_device() == 2
            assert torch.ones(1).cuda().device == torch.device("cuda:2")
            with fake_mode(fake_cuda=2):
                assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 1
        with torch.cuda.device_of(torch.ones(1, device="cuda:2")):
            assert torch.cuda.current_device() == 2
        with torch.cuda.device("cuda:0"):
            assert nn.Linear(1, 1, device="cuda").weight.device == CUDA
        torch.cuda.set_device("cuda:2")
        assert torch.cuda.current_device() == 2
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.set_device(3)
    with fake_mode(fake_cuda=3):
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("name", profiles())
def test_profiles(name: str) -> None:
    """``torch.cuda`` describes the named device, the same by every question."""
    profile = profiles()[name]
    with fake_mode(fake_cuda=name):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        properties = torch.cuda.get_device_properties(0)
        assert properties.name == torch.cuda.get_device_name() == profile.name
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability("cuda")
        assert torch.cuda.get_device_capability() == (profile.major, profile.minor)
        assert properties.multi_processor_count == profile.multi_processor_count
        free, total = torch.cuda.mem_get_info()
        assert 0 < free <= total == properties.total_memory == profile.total_memory
        assert torch.cuda.is_bf16_supported(including_emulation=False) is (profile.major >= 8)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated("cuda:0") == 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def test_accelerator_is_the_same_machine() -> None:
    """``torch.accelerator`` answers as ``torch.cuda`` does, and so does a stream."""
    with fake_mode(fake_cuda=3):
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 3
        torch.accelerator.set_device_index(2)
        assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 2
        torch.accelerator.synchronize()
        torch.cuda.current_stream().synchronize()
        assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_on_fake_cuda(use_reentrant: bool) -> None:
    """It asks for the device's generator state, and sets it again."""
    with fake_mode(fake_cuda=2):
        module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3)).cuda(1)
        x = torch.randn(2, 3, device="cuda:1", requires_grad=True)
        run = torch.utils.checkpoint.checkpoint
        run(module, x, use_reentrant=use_reentrant).sum().backward()
    assert x.grad.device == module[0].weight.grad.device == torch.device("cuda:1")


def test_questions_about_other_devices() -> None:
    """A device out of range is refused; names of devices are understood."""
    with fake_mode(fake_cuda=2):
        for device in (1, "cuda:1", torch.device("cuda:1"), "cuda", None):
            assert torch.cuda.get_device_capability(device) == (8, 0)
        for question in (torch.cuda.get_device_properties, torch.cuda.get_device_name):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                question(2)


def test_seeds_and_generators_of_fake_cuda() -> None:
    """Seeding CUDA is a thing that programs do first."""
    with fake_mode(fake_cuda=2):
        torch.cuda.manual_seed(1)
        torch.cuda.manual_seed_all(1)
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        with torch.random.fork_rng(devices=[0, 1]):
            torch.rand(2, device="cuda")


@pytest.mark.parametrize("wrong", ["no-such-gpu", -1, 10_000, ""])
def test_wrong_machines(wrong: Any) -> None:
    """Refused where they are named."""
    with pytest.raises(errors.DeviceError):
        fake_mode(fake_cuda=wrong)


# Training.


def train(optimizer_class: Any, device: str, **options: Any) -> list[Any]:
    """Three accumulated steps of a small network: everything that has metadata."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 5)]
    module = nn.Sequential(*layers).to(device)
    optimizer = optimizer_class(module.parameters(), lr=0.1, **options)
    for step in range(3):
        x, y = torch.randn(2, 3, 8, 8, device=device), torch.tensor([1, 2], device=device)
        loss = F.cross_entropy(module(x), y) / 2
        loss.backward()
        if step:
            norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    states = [sorted(s.items()) for s in optimizer.state_dict()["state"].values()]
    return [loss, norm, list(module.parameters()), states]


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str
)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_training(optimizer: Any, options: dict[str, bool]) -> None:
    """The same metadata as on the CPU, but for the device; the step counts are where CUDA's are."""
    expected = train(optimizer, "cpu", **options)
    with fake_mode(fake_cuda=True):
        got = train(optimizer, "cuda", **options)
    assert all_fake(got)
    assert [d._replace(device=None) for d in describe(got) if not isinstance(d, str)] == [
        d._replace(device=None) for d in describe(expected) if not isinstance(d, str)
    ]
    tensors = [t for t in torch.utils._pytree.tree_leaves(got) if isinstance(t, torch.Tensor)]
    on_cpu = [t for t in tensors if t.device.type == "cpu"]
    assert all(t.dim() == 0 for t in on_cpu)
    assert not (options.get("fused") and on_cpu)


def test_gpt2_trains_twice() -> None:
    """A whole training step of GPT-2, twice, in each of two modes."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config()

    def step(model: Any, optimizer: Any) -> Any:
        tokens = torch.randint(0, config.vocab_size, (2, 16), device="cuda")
        for _ in range(2):
            loss = model(tokens, labels=tokens).loss
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    for _ in range(2):
        with fake_mode(fake_cuda=True):
            model = transformers.GPT2LMHeadModel(config).to("cuda").train()
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for _ in range(2):
                loss, norm = step(model, optimizer)
        assert (loss.device, tuple(loss.shape), norm.device) == (CUDA, (), CUDA)
        assert model.lm_head.weight is model.transformer.wte.weight
        assert {p.device for p in model.parameters()} == {CUDA}
        states = [v for s in optimizer.state.values() for v in s.values()]
        assert {v.device for v in states} == {CUDA}
        assert len(states) == 3 * len(list(model.parameters()))
    assert not torch.cuda.is_initialized()


# Torch after a mode, and without fake CUDA.


def the_error_of(program: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        program()
    return type(caught.value), str(caught.value)


@no_gpu
@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.ones(3, device="cuda"),
        lambda: torch.ones(3).cuda(),
        lambda: torch.ones(3).to("cuda"),
        lambda: nn.Linear(2, 2, device="cuda"),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: torch.tensor([1], device="cuda:0"),
        lambda: torch.cuda.current_device(),
        lambda: torch.cuda.get_device_properties(0),
        lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    ],
    ids=["factory", "cuda", "to", "linear", "module", "tensor", "current", "properties", "like"],
)
def test_no_cuda_is_no_cuda(program: Callable[[], Any]) -> None:
    """Without fake CUDA the error is eager's, in the mode and after any mode."""
    before = the_error_of(program)
    with fake_mode():
        assert the_error_of(program) == before
    with fake_mode(fake_cuda=2):
        program()
        with fake_mode():
            assert the_error_of(program) == before
        program()
    assert the_error_of(program) == before
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


def attributes_of_torch() -> dict[str, dict[str, Any]]:
    owners = [
        torch, torch.cuda, torch.Tensor, torch._C.TensorBase, torch.nn.init, torch.nn.functional,
        torch.nn.Module, torch.nn.Parameter, torch.random, torch.serialization, torch.utils.data,
        torch.cuda.random, torch.cuda.memory, torch.multiprocessing, torch.autograd, torch.optim,
        torch._C, torch.nn.parameter, torch.accelerator,
        torch._C._nn, torch.backends.cudnn, vars(torch.backends.cudnn)["m"], torch.fft,
    ]  # fmt: skip
    return {f"{o.__name__}@{i}": dict(vars(o)) for i, o in enumerate(owners)}


def assert_same_attributes(before: dict[str, dict[str, Any]]) -> None:
    for owner, attributes in attributes_of_torch().items():
        known = before[owner]
        assert {n for n, v in known.items() if attributes.get(n, known) is not v} == set(), owner
        assert {n for n in attributes if n not in known} == set(), owner


class Stop(Exception):
    """Ends a mode early."""


def _after_exception() -> None:
    with contextlib.suppress(Stop), fake_mode(fake_cuda=True):
        torch.ones(1)
        raise Stop


def _nested() -> None:
    with fake_mode(), contextlib.suppress(Stop), fake_mode(fake_cuda=2), fake_mode(fake_cuda=True):
        torch.ones(1, device="cuda")
        raise Stop


def _two_threads() -> None:
    """The second thread's mode outlives the first's."""
    first_is_out, second_is_in = threading.Event(), threading.Event()

    def second() -> None:
        with fake_mode(fake_cuda=True):
            second_is_in.set()
            first_is_out.wait(10)
            torch.ones(1, device="cuda")

    thread = threading.Thread(target=second)
    with fake_mode():
        thread.start()
        second_is_in.wait(10)
    first_is_out.set()
    thread.join()


@pytest.mark.parametrize(
    "use",
    [
        lambda: fake_mode(fake_cuda=True).__enter__().__exit__(None, None, None),
        _after_exception,
        _nested,
        _two_threads,
        lambda: fake_mode(fake_cuda=True)(lambda: torch.ones(1, device="cuda"))(),
    ],
    ids=["plain", "exception", "nested", "two_threads", "decorator"],
)
def test_torch_is_left_as_it_was(use: Callable[[], Any]) -> None:
    """Not one attribute of torch's modules and classes differs, whatever happened in the mode."""
    with fake_mode(fake_cuda=True):
        pass  # what torch imports lazily is imported now
    before = attributes_of_torch()
    use()
    assert_same_attributes(before)


def test_other_threads_see_the_real_torch_meanwhile() -> None:
    """While one thread is in a mode, another has real tensors and no CUDA it does not have."""
    seen: list[Any] = []

    def other() -> None:
        seen.append((is_fake(torch.ones(1)), torch.cuda.is_available(), torch.cuda.device_count()))

    expected = (False, torch.cuda.is_available(), torch.cuda.device_count())
    with fake_mode(fake_cuda=4):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [expected]

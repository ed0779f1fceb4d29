"""Modes and fakes among threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from tests.conftest import all_fake
from torchfake import fake_mode, is_fake


def on_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


def test_a_thread_started_before_is_outside() -> None:
    """A mode holds for the thread that entered it, and for those that are started inside it."""
    begin, made = threading.Event(), list[Any]()

    def work() -> None:
        begin.wait(60)
        made.append(torch.ones(2) + 1)

    thread = threading.Thread(target=work)
    thread.start()
    with fake_mode(fake_cuda=True):
        begin.set()
        thread.join(60)
        assert is_fake(torch.ones(2))
    assert not is_fake(made[0])
    assert made[0].tolist() == [2.0, 2.0]


def test_fakes_cross_threads() -> None:
    """A fake is used, and its backward pass run, on a thread without a mode."""
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

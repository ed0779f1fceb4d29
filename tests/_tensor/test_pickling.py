"""Pickles are a file format: those of the first release load, and are still written the same."""

from __future__ import annotations

import base64
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import FakeTensor, fake_mode, is_fake

OF_RELEASE_0_1 = base64.b64decode(
    """
gASVXAEAAAAAAAB9lCiMBGJhc2WUjBF0b3JjaGZha2UuX3RlbnNvcpSMCWxvYWRfZmFrZZSTlCiME3RvcmNoZmFr
ZS5fbWV0YWRhdGGUjAxsb2FkX3N0b3JhZ2WUk5RLGIwGY3VkYToxlIaUUpRLA0sEhpRLBEsBhpRLAIwFdG9yY2iU
jAhiZmxvYXQxNpSTlIwGY3VkYToxlImJiX2UTnSUUpSMBHZpZXeUaAQoaApLBEsChpRLAUsEhpRLBGgPjAZjdWRh
OjGUiYmJfZROdJRSlIwGd2VpZ2h0lGgEKGgHSwiMA2NwdZSGlFKUSwKFlEsBhZRLAGgNjAdmbG9hdDMylJOUjANj
cHWUiYmIfZSMCV9pc19wYXJhbZSIc050lFKUjARjb25qlGgEKGgHSxCMA2NwdZSGlFKUSwKFlEsBhZRLAGgNjAlj
b21wbGV4NjSUk5SMA2NwdZSIiYl9lE50lFKUdS4=
"""
)


def objects_in_the_pickle() -> dict[str, FakeTensor]:
    """The objects that were pickled."""
    with fake_mode(fake_cuda=2):
        base: Any = torch.empty(3, 4, device="cuda:1", dtype=torch.bfloat16)
        weight: Any = torch.nn.Parameter(torch.empty(2))
        conj: Any = torch.empty(2, dtype=torch.complex64).conj()
        return {"base": base, "view": base[1:].t(), "weight": weight, "conj": conj}


def test_an_old_pickle_loads() -> None:
    loaded = pickle.loads(OF_RELEASE_0_1)
    for name, expected in objects_in_the_pickle().items():
        fake = loaded[name]
        assert is_fake(fake)
        assert (fake.shape, fake.stride(), fake.dtype) == (
            expected.shape, expected.stride(), expected.dtype
        )  # fmt: skip
        assert (fake.device, fake.is_conj()) == (expected.device, expected.is_conj())
    assert isinstance(loaded["weight"], torch.nn.Parameter)
    assert loaded["view"]._fake_storage is loaded["base"]._fake_storage


def test_pickles_are_written_in_the_same_format() -> None:
    assert pickle.dumps(objects_in_the_pickle(), protocol=4) == OF_RELEASE_0_1


def test_an_old_pickle_loads_where_torchfake_is_not_imported_yet() -> None:
    program = (
        "import pickle, sys; loaded = pickle.load(sys.stdin.buffer); "
        "sys.stdout.write(type(loaded['base']).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=OF_RELEASE_0_1, capture_output=True, check=True
    )
    assert done.stdout == b"FakeTensor"


def test_torch_load_trusts_them() -> None:
    file = io.BytesIO()
    torch.save(objects_in_the_pickle()["weight"], file)
    file.seek(0)
    assert is_fake(torch.load(file, weights_only=True))


def resumed(first: torch.optim.Optimizer, parameter: torch.nn.Parameter, **options: Any) -> Any:
    """An optimizer of the same class that was loaded from a file, after its next step."""
    file = io.BytesIO()
    torch.save({"optimizer": first.state_dict()}, file)
    file.seek(0)
    second = type(first)([parameter], **options)  # type: ignore[call-arg]
    second.load_state_dict(torch.load(file, weights_only=True)["optimizer"])
    second.step()
    return second


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}, {"capturable": True}])
def test_an_optimizer_is_resumed(options: dict[str, bool]) -> None:
    """It reads its count of steps, which is a tensor."""
    with fake_mode(fake_cuda=True):
        parameter = torch.nn.Parameter(torch.randn(3, 4, device="cuda"))
        parameter.grad = torch.randn(3, 4, device="cuda")
        first = torch.optim.AdamW([parameter], **options)  # type: ignore[arg-type]
        first.step()
        second = resumed(first, parameter, **options)
        assert second.state[parameter]["step"].item() == 2


def test_small_values_are_pickled() -> None:
    with fake_mode():
        known, unknown = torch.arange(4), torch.empty(3)
        loaded = pickle.loads(pickle.dumps([known, known[1:], unknown, torch.arange(1000)]))
        loaded[0][1] = 9
        assert (loaded[1].tolist(), known.tolist()) == ([9, 2, 3], [0, 1, 2, 3])
        for other in loaded[2:]:
            with pytest.raises(ValueError, match="is not known"):
                other.tolist()


MOVED: list[tuple[Any, list[str]]] = [
    (None, ["cuda:1", "cpu"]),
    ("cpu", ["cpu", "cpu"]),
    (torch.device("cuda", 0), ["cuda:0", "cuda:0"]),
    ({"cuda:1": "cuda:0"}, ["cuda:0", "cpu"]),
    (lambda storage, location: storage, ["cpu", "cpu"]),
    (lambda storage, location: storage.cuda(0) if location != "cpu" else None, ["cuda:0", "cpu"]),
]


@pytest.mark.parametrize(("location", "expected"), MOVED)
def test_fakes_in_a_file_are_moved(location: Any, expected: list[str]) -> None:
    with fake_mode(fake_cuda=2):
        file, there = io.BytesIO(), torch.ones(3, device="cuda:1")
        torch.save([there, there[1:], torch.ones(2)], file)
        file.seek(0)
        loaded, view, here = torch.load(file, map_location=location)
        assert [str(loaded.device), str(here.device)] == expected
        assert (view._fake_storage is loaded._fake_storage, view.device) == (True, loaded.device)
        assert pickle.loads(pickle.dumps(there)).device == there.device


def test_lazy_layers_are_pickled():
    with fake_mode():
        layer = pickle.loads(pickle.dumps(nn.LazyLinear(3)))
        assert layer(torch.randn(2, 5)).shape == (2, 3)
    assert is_fake(layer)


def test_deferred_tensors_of_a_class_in_a_process_that_has_deferred_nothing() -> None:
    """Its class is called outside all modes: the one for deferred tensors is found then."""
    script = (
        "import sys, torch, torchfake\n"
        "from torchfake._tensor import classes\n"
        "assert 'torchfake.deferred' not in sys.modules\n"
        "for is_deferred in (True, False):\n"
        "    with classes.modes_by_kind[is_deferred]():\n"
        "        made = torch.ones(2)\n"
        "    assert torchfake.is_fake(made) and torchfake.is_deferred(made) is is_deferred"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

"""Digests: equal for equal values, other for other operations, arguments and draws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests._graph.conftest import contents_of, op_of
from torchfake import deferred_mode, materialize_tensor
from torchfake._core.metadata import metadata_of
from torchfake._graph.digest import (
    digest_of_contents,
    digest_of_op,
    digest_of_record,
    digest_of_values,
    hash_parts,
)

CPU = torch.device("cpu")


def digest_after(program: Callable[[], torch.Tensor], seed: int = 0) -> bytes:
    torch.manual_seed(seed)
    with deferred_mode():
        tensor = program()
    return digest_of_contents(contents_of(tensor))


BASE = [1.0, 2.0, 3.0]
PROGRAMS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(4),
    "empty, larger": lambda: torch.empty(5),
    "zeros": lambda: torch.zeros(4),
    "ones": lambda: torch.ones(4),
    "zeros, another dtype": lambda: torch.zeros(4, dtype=torch.int32),
    "written": lambda: torch.zeros(4).add_(1),
    "written by another number": lambda: torch.zeros(4).add_(2),
    "a view is written": lambda: torch.zeros(4)[1:].add_(1),
    "real tensor": lambda: torch.zeros(3) + torch.tensor(BASE),
    "first of two results": lambda: torch.zeros(3, 4).max(0).values,
    "second of two results": lambda: torch.zeros(3, 4).max(0).indices,
    "draw": lambda: torch.rand(20),
    "the draw after it": lambda: [torch.rand(20), torch.rand(20)][1],
    "draw after an uncounted one": lambda: [torch.empty(9).log_normal_(), torch.rand(20)][1],
}


def test_other_programs_have_other_digests() -> None:
    digests = {name: digest_after(program) for name, program in PROGRAMS.items()}
    assert len(set(digests.values())) == len(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_programs_have_equal_digests(name: str) -> None:
    program = PROGRAMS[name]
    digest = digest_after(program)
    assert len(digest) == 32
    assert digest_after(program) == digest
    assert (digest_after(program, seed=1) == digest) == ("draw" not in name)


def test_the_values_of_real_tensors_count() -> None:
    tables = [torch.tensor(BASE), torch.tensor(BASE), torch.tensor(BASE) * 2]
    one, same, other = (digest_after(lambda t=t: torch.zeros(3) + t) for t in tables)  # type: ignore[misc]
    assert one == same != other


def test_the_default_dtype_counts() -> None:
    digest = digest_after(lambda: torch.zeros(3))
    torch.set_default_dtype(torch.float64)
    try:
        assert digest_after(lambda: torch.zeros(3)) != digest
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_replay_changes_no_digest() -> None:
    """Neither of what it has computed, nor of what depends on that."""

    def program() -> list[torch.Tensor]:
        drawn = torch.empty(9).log_normal_()
        return [drawn, torch.rand(20), drawn * 2]

    def digests(replayed: int | None) -> list[bytes]:
        torch.manual_seed(0)
        with deferred_mode():
            tensors = program()
        contents = [contents_of(tensor) for tensor in tensors]
        if replayed is not None:
            materialize_tensor(tensors[replayed])
        return [digest_of_contents(each) for each in contents]

    before = digests(None)
    for i in range(3):
        assert digests(i) == before


def test_digests_are_cached_by_operation() -> None:
    with deferred_mode():
        a = torch.zeros(3)
        b = a + 1
    digest = digest_of_op(op_of(b))
    assert op_of(b).digest is digest
    assert op_of(a).digest is not None


def test_metadata() -> None:
    tensor = torch.ones(2, 3)
    records = [metadata_of(t, CPU) for t in (tensor, tensor.t(), tensor[1:], tensor.half())]
    records.append(metadata_of(tensor, torch.device("cuda", 0)))
    assert len({digest_of_record(record) for record in records}) == len(records)
    again = metadata_of(torch.zeros(2, 3), CPU)
    assert digest_of_record(again) == digest_of_record(records[0])


def test_values() -> None:
    """By elements: the layout in memory makes no difference, the shape and the dtype do."""
    tensor = torch.arange(6.0).reshape(2, 3)
    assert digest_of_values(tensor) == digest_of_values(tensor.t().contiguous().t())
    others = [tensor + 1, tensor.reshape(3, 2), tensor.double(), torch.zeros(0)]
    digests = {digest_of_values(each) for each in (tensor, *others)}
    assert len(digests) == 1 + len(others)


def test_hash_parts() -> None:
    assert hash_parts(1, "a") == hash_parts(1, "a")
    assert hash_parts(1, "a") != hash_parts("1", "a")
    assert hash_parts("ab", "c") != hash_parts("a", "bc")

"""Storage objects of fakes: what is done to them is done to the memory, or refused.

Each program of the table is run in eager mode, in a deferred mode, on deferred tensors after their
mode, and on plain fakes. What it gives then, materialized, has eager's bits; of plain fakes eager's
metadata; or the program ends in one of torchfake's errors.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.conftest import unknown
from tests.oracle import bits
from torchfake import deferred_mode, errors, fake_mode, is_deferred, is_fake, materialize_tensor
from torchfake._tensor.fake_tensor import FakeTensor

Program = Callable[[Callable[[], Any]], Any]


def on(storage: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of all of a storage."""
    return torch.empty(0, dtype=dtype).set_(storage)


def raw(storage: Any) -> torch.Tensor:
    return on(storage, torch.uint8)


def after(change: Callable[[torch.Tensor], Any]) -> Program:
    """The tensor after `change`."""

    def program(make: Callable[[], torch.Tensor]) -> torch.Tensor:
        tensor = make()
        change(tensor)
        return tensor

    return program


def saved(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def other() -> torch.Tensor:
    return torch.arange(6.0)


def with_storage(use: Callable[[Any, torch.Tensor], Any]) -> Program:
    """What `use` gives of the storage object and the tensor."""

    def program(make: Callable[[], torch.Tensor]) -> Any:
        tensor = make()
        return use(tensor.untyped_storage(), tensor)

    return program


NEW_TENSORS: dict[str, Program] = {
    "set_ to a storage that outlives its tensor": lambda m: on(m().untyped_storage()),
    "set_ with a place": lambda m: torch.empty(0).set_(m().untyped_storage(), 1, (2, 2), (2, 1)),
    "set_ to a typed storage": lambda m: on(m().storage()),
    "set_ of a set_": lambda m: torch.empty(0).set_(on(m().storage()).untyped_storage(), 2, (3,)),
    "set_ with another dtype": lambda m: on(m().untyped_storage(), torch.int32),
    "set_ to the base of a view": lambda m: on(m()[2:].untyped_storage()),
    "set_, and the storage written before": with_storage(lambda s, t: (t.add_(1), on(s))[1]),
    "set_, and the result written": after(lambda t: on(t.untyped_storage()).add_(1)),
    "Tensor.new": lambda m: torch.empty(1).new(m().storage()),
    "rebuilt": lambda m: torch._utils._rebuild_tensor_v2(  # type: ignore[no-untyped-call]
        m()._typed_storage(), 0, (2, 3), (3, 1), False, {}
    ),
    "TypedStorage of it": lambda m: on(
        torch.TypedStorage(wrap_storage=m().untyped_storage(), dtype=torch.float32)
    ),
    "torch.tensor of a typed storage": lambda m: torch.tensor(m().storage()),
    "from_buffer": lambda m: on(
        torch.UntypedStorage.from_buffer(bytes(range(24)), dtype=torch.float32, byte_order="native")
    ),
}
"""These make a tensor, which outside a mode is a real one, and cannot have such a storage."""

PROGRAMS: dict[str, Program] = {
    "clone": lambda m: m().untyped_storage().clone(),
    "clone, then the original written": with_storage(lambda s, t: (s.clone(), t.zero_())[0]),
    "copy.copy": lambda m: copy.copy(m().untyped_storage()),
    "copy.deepcopy": lambda m: copy.deepcopy(m().untyped_storage()),
    "deepcopy of both": with_storage(lambda s, t: shared_copy([t, s])),
    "typed clone": lambda m: m().storage().clone(),
    "typed copy.copy": lambda m: copy.copy(m().storage()),
    "typed deepcopy": lambda m: copy.deepcopy(m().storage()),
    "cpu": lambda m: m().untyped_storage().cpu(),
    "to": lambda m: m().untyped_storage().to(device="cpu"),
    "untyped float": lambda m: m().untyped_storage().float(),
    "typed double": lambda m: m().storage().double(),
    "typed half": lambda m: m().storage().half(),
    "types": lambda m: [m().storage().type(), m().untyped_storage().type()],
    "sizes": lambda m: [len(m().untyped_storage()), m().untyped_storage().nbytes()],
    "typed sizes": lambda m: [m().storage().size(), len(m().storage()), m().storage().nbytes()],
    "kind": lambda m: [m().storage().dtype, m().storage().device, m().storage().is_cuda],
    "pickle_storage_type": lambda m: m().storage().pickle_storage_type(),
    "tolist": lambda m: m().untyped_storage().tolist(),
    "iterated": lambda m: list(m().untyped_storage()),
    "typed tolist": lambda m: m().storage().tolist(),
    "item": lambda m: [m().untyped_storage()[3], m().storage()[2], m().storage()[-2]],
    "item out of range": lambda m: m().untyped_storage()[99],
    "typed item out of range": lambda m: m().storage()[99],
    "typed slice": lambda m: m().storage()[1:2],
    "slice": lambda m: m().untyped_storage()[4:12],
    "slice with a step": lambda m: m().untyped_storage()[4:12:2],
    "assign": after(lambda t: t.untyped_storage().__setitem__(1, 7)),
    "assign a slice": after(lambda t: t.untyped_storage().__setitem__(slice(0, 4), 1)),
    "assign with a step": after(lambda t: t.untyped_storage().__setitem__(slice(0, 4, 2), 1)),
    "assign out of range": after(lambda t: t.untyped_storage().__setitem__(100, 1)),
    "assign a float": after(lambda t: t.untyped_storage().__setitem__(0, 1.5)),
    "typed assign": after(lambda t: t.storage().__setitem__(1, 7.5)),
    "typed assign a slice": after(lambda t: t.storage().__setitem__(slice(1, 4), 7.5)),
    "fill_": after(lambda t: t.untyped_storage().fill_(3)),
    "fill_ with a float": after(lambda t: t.untyped_storage().fill_(1.5)),
    "typed fill_": after(lambda t: t.storage().fill_(3.5)),
    "copy_": after(lambda t: t.untyped_storage().copy_(other().untyped_storage())),
    "copy_ of another size": after(
        lambda t: t.untyped_storage().copy_(torch.arange(3.0).untyped_storage())
    ),
    "copy_ of a real storage": after(
        lambda t: t.untyped_storage().copy_(torch.UntypedStorage([1] * 24))
    ),
    "typed copy_": after(lambda t: t.storage().copy_(other().storage())),
    "smaller": with_storage(lambda s, t: s.resize_(12)),
    "larger, written": with_storage(lambda s, t: (s.resize_(32), s.fill_(1))[1]),
    "smaller, then larger by the tensor": after(
        lambda t: (t.untyped_storage().resize_(12), t.resize_(8).fill_(1))
    ),
    "smaller, freed, larger": after(
        lambda t: [t.untyped_storage().resize_(n) for n in (12, 0, 24)] and t.fill_(1)
    ),
    "freed and written": after(
        lambda t: (t.storage().resize_(0), t.untyped_storage().resize_(24), t.fill_(2))
    ),
    "shared": lambda m: m().untyped_storage().share_memory_(),
    "is shared": with_storage(lambda s, t: [s.is_shared(), s.share_memory_().is_shared()]),
    "a tensor is shared": with_storage(lambda s, t: [t.share_memory_().is_shared(), t.is_shared()]),
    "descriptor": with_storage(lambda s, t: len(s._share_fd_cpu_())),
    "byteswap": after(lambda t: t.untyped_storage().byteswap(torch.float32)),
    "file": with_storage(lambda s, t: written(s)),
    "pickled typed": lambda m: pickle.loads(pickle.dumps(m().storage())),
    "saved": lambda m: saved(m().untyped_storage()),
    "saved typed": lambda m: saved(m().storage()),
    "saved in another typed storage": lambda m: saved(
        torch.TypedStorage(wrap_storage=m().untyped_storage(), dtype=torch.float32)
    ),
    "saved typed, legacy": lambda m: saved(m().storage(), _use_new_zipfile_serialization=False),
    "numbers": with_storage(
        lambda s, t: [t.data_ptr() == s.data_ptr(), t[1:].data_ptr() - t.data_ptr(), s is not None]
    ),
    "identity": with_storage(
        lambda s, t: [t.view(2, 3).untyped_storage()._cdata == s._cdata, t.untyped_storage() is s]
    ),
    "written by numpy": after(lambda t: t.numpy().__setitem__(0, 9)),
    "written through dlpack": after(lambda t: torch.from_dlpack(t).numpy().fill(9)),
    "read by numpy, then written": with_storage(lambda s, t: (t.numpy(), t.add_(1))[1]),
}


def shared_copy(both: list[Any]) -> Any:
    tensor, storage = copy.deepcopy(both)
    tensor.zero_()
    return storage


def written(storage: Any) -> int:
    with open("/dev/null", "wb") as file:
        storage._write_file(file, False, True, 1)
    return 1


def real_result(value: Any) -> Any:
    """A result as bytes and numbers: of fakes, their metadata."""
    if torch.is_storage(value) or isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        untyped = getattr(value, "_untyped_storage", value)
        fake = getattr(untyped, "_fake_storage", None)
        value = raw(untyped) if fake is None else untyped.as_tensor()
    if not isinstance(value, torch.Tensor):
        return value
    if is_deferred(value):
        value = materialize_tensor(value)
    described = tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
    return described, value.untyped_storage().nbytes(), None if is_fake(value) else bits(value)


def outcome(run: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated
        try:
            return run()
        except Exception as error:
            return error


def made_in(mode: Callable[[], Any]) -> Callable[[], torch.Tensor]:
    def make() -> torch.Tensor:
        with mode():  # a mode of fakes, entered again, would draw the same again
            return unknown(6) if mode is fake_mode else torch.randn(6)

    return make


@contextlib.contextmanager
def no_mode() -> Iterator[None]:
    yield


def check(program: Program, around: Callable[[], Any], make: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(0)
    expected = outcome(lambda: real_result(program(lambda: torch.randn(6))))
    torch.manual_seed(0)

    def run() -> Any:
        with around():
            result = program(make)
        return real_result(result)

    result = outcome(run)
    if isinstance(result, Exception):
        is_ours = isinstance(result, errors.TorchFakeError)
        assert is_ours or type(result) is type(expected), repr(result)
    elif isinstance(result, tuple) and result[-1] is None:
        assert result[:-1] == expected[:-1]
    else:
        assert result == expected


@pytest.mark.parametrize("name", [*PROGRAMS, *NEW_TENSORS])
@pytest.mark.parametrize("mode", [deferred_mode, fake_mode])
def test_a_program_inside_a_mode(name: str, mode: Callable[[], Any]) -> None:
    if mode is fake_mode and name == "torch.tensor of a typed storage":
        return  # torch reads its items, which are not known
    check({**PROGRAMS, **NEW_TENSORS}[name], mode, lambda: torch.randn(6))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", [deferred_mode, fake_mode])
def test_a_program_after_the_mode(name: str, mode: Callable[[], Any]) -> None:
    check(PROGRAMS[name], no_mode, made_in(mode))


REFUSED = {name for name in PROGRAMS if name.startswith("saved ")}


@pytest.mark.parametrize("name", [*PROGRAMS, *NEW_TENSORS])
def test_of_deferred_tensors_only_saved_typed_storages_are_refused(name: str) -> None:
    torch.manual_seed(0)
    expected = outcome(lambda: {**PROGRAMS, **NEW_TENSORS}[name](lambda: torch.randn(6)))

    def run() -> Any:
        with deferred_mode():
            return {**PROGRAMS, **NEW_TENSORS}[name](lambda: torch.randn(6))

    result = outcome(run)
    assert isinstance(result, Exception) == (isinstance(expected, Exception) or name in REFUSED)


def test_the_storage_of_a_plain_fake_has_no_values_for_a_deferred_tensor() -> None:
    with fake_mode():
        plain, known = unknown(6), torch.arange(6.0)
    with deferred_mode():
        tensors = [on(t.untyped_storage()) for t in (plain, known)]
    with pytest.raises(errors.ReplayError, match="the storage of a plain fake"):
        materialize_tensor(tensors[0])
    assert materialize_tensor(tensors[1]).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_storage_object_keeps_the_fake_and_not_the_reverse() -> None:
    with fake_mode():
        tensor = torch.arange(4)
    assert isinstance(tensor, FakeTensor)
    storage = tensor.untyped_storage()
    assert storage is tensor.untyped_storage()
    number = storage._cdata
    del storage
    assert tensor.untyped_storage()._cdata == number
    storage = tensor.storage()
    del tensor
    assert storage.tolist() == [0, 1, 2, 3]


def test_storages_of_fakes_are_pickled_without_bytes() -> None:
    with fake_mode():
        tensor = torch.randn(4)
    untyped = pickle.loads(pickle.dumps(tensor.untyped_storage()))
    typed = pickle.loads(pickle.dumps(tensor._typed_storage()))
    assert (untyped.nbytes(), typed._size(), typed.dtype) == (16, 4, torch.float32)

"""Messages of exceptions, to the letter, and their base classes."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline as expect

from torchfake import errors, fake_like, fake_mode, meta_like
from torchfake.errors import (
    AnswerError,
    CacheError,
    ChangedValueError,
    CheckError,
    CheckpointError,
    DeviceError,
    InputsError,
    MaterializeError,
    MissingExtraError,
    NotDeferredError,
    NotFakeError,
    RankMismatchError,
    RealTensorWriteError,
    RecordError,
    ReplayError,
    TargetError,
    TorchFakeError,
    TraceError,
    UnknownValueError,
    UnsupportedOpError,
    printable,
)

BASES = {
    TorchFakeError: Exception,
    NotFakeError: ValueError,
    AnswerError: ValueError,
    UnknownValueError: ValueError,
    RealTensorWriteError: ValueError,
    UnsupportedOpError: NotImplementedError,
    DeviceError: ValueError,
    MissingExtraError: ImportError,
    TargetError: ValueError,
    CacheError: AssertionError,
    NotDeferredError: ValueError,
    RecordError: ValueError,
    ReplayError: RuntimeError,
    MaterializeError: RuntimeError,
    ChangedValueError: ValueError,
    CheckpointError: ValueError,
    RankMismatchError: RuntimeError,
    CheckError: ValueError,
    InputsError: ValueError,
    TraceError: RuntimeError,
}


def message(program: Callable[[], Any], kind: type[Exception]) -> str:
    """The message that `program` raises; the line in this file and torch's version are masked."""
    with pytest.raises(kind) as caught:
        program()
    assert type(caught.value) is kind
    text = str(caught.value).replace(__file__, "FILE").replace(torch.__version__, "VERSION")
    return textwrap.fill(re.sub(r"FILE:\d+", "FILE:LINE", text), 90)


def test_every_class_is_listed() -> None:
    known = inspect.getmembers(errors, inspect.isclass)
    classes = {c for _, c in known if c.__module__ == errors.__name__}
    assert classes == set(BASES)
    assert {c.__name__ for c in classes} == set(errors.__all__)


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_base_class_and_docstring(kind: type[Exception]) -> None:
    assert issubclass(kind, TorchFakeError)
    assert issubclass(kind, BASES[kind])
    assert kind.__name__.endswith("Error")
    page = inspect.getdoc(kind)
    assert page is not None
    assert len(page.split()) > 8


def test_unknown_value() -> None:
    @fake_mode()
    def branch() -> None:
        hidden = torch.randn(20, 30)
        if hidden.abs().max() > 10:
            raise AssertionError

    expect(
        message(branch, UnknownValueError),
        """\
item() needs the value of a fake tensor, and it is not known: bool[] on cpu, made by
aten.gt.Scalar at FILE:LINE in branch. Fakes keep the values of small tensors computed
from host data only. Use a Python number or a small torch.tensor(...) here, skip the
branch for fakes with torchfake.is_fake(tensor), or have typical values assumed:
torchfake.fake_mode(answer="typical")""",
    )


def test_unknown_value_of_a_weight() -> None:
    layer = fake_mode(fake_cuda=True)(lambda: torch.nn.Linear(20, 30).cuda())()
    expect(
        message(layer.weight.tolist, UnknownValueError),
        """\
tolist() needs the value of a fake tensor, and it is not known: float32[30, 20] on cuda:0,
made by aten._to_copy.default at FILE:LINE in <lambda>. Fakes keep the values of small
tensors computed from host data only. Use a Python number or a small torch.tensor(...)
here, skip the branch for fakes with torchfake.is_fake(tensor), or have typical values
assumed: torchfake.fake_mode(answer="typical")""",
    )


def test_unknown_value_of_a_fake_copy() -> None:
    fake = fake_like(torch.ones(2))
    expect(
        message(fake.numpy, UnknownValueError),
        """\
numpy() needs the value of a fake tensor, and it is not known: float32[2] on cpu. Fakes
keep the values of small tensors computed from host data only. Use a Python number or a
small torch.tensor(...) here, skip the branch for fakes with torchfake.is_fake(tensor), or
have typical values assumed: torchfake.fake_mode(answer="typical")""",
    )


def test_unknown_mask() -> None:
    @fake_mode()
    def select() -> None:
        x = torch.randn(400)
        x[x > 0]

    expect(
        message(select, UnknownValueError),
        """\
indexing with a mask needs the value of a fake tensor, and it is not known: bool[400] on
cpu, made by aten.gt.Scalar at FILE:LINE in select. Fakes keep the values of small tensors
computed from host data only. Keep the shape, with x.masked_fill(~mask, 0) or
torch.where(mask, x, 0) in place of x[mask], skip the branch for fakes with
torchfake.is_fake(tensor), or have typical values assumed:
torchfake.fake_mode(answer="typical")""",
    )


def test_data_dependent_shape() -> None:
    nonzero = fake_like(torch.ones(3, dtype=torch.int64)).nonzero
    expect(
        message(nonzero, UnknownValueError),
        """\
aten.nonzero.default needs the value of a fake tensor, and it is not known: int64[3] on
cpu. Fakes keep the values of small tensors computed from host data only. Keep the shape,
with x.masked_fill(~mask, 0) or torch.where(mask, x, 0) in place of x[mask], skip the
branch for fakes with torchfake.is_fake(tensor), or have typical values assumed:
torchfake.fake_mode(answer="typical")""",
    )


def test_real_tensor_write() -> None:
    real, fake = torch.zeros(2, 3), fake_like(torch.ones(3))
    expect(
        message(lambda: real.add_(fake), RealTensorWriteError),
        """\
aten.add_.Tensor would write fake values into a real tensor of shape [2, 3] and dtype
torch.float32. Write out of place (the result is a fake), or into its fake copy:
torchfake.fake_like(tensor). If the values are those of a deferred module, call
materialize_module first""",
    )


def test_unsupported_op() -> None:
    fake = fake_like(torch.eye(2))
    expect(
        message(fake.to_sparse, UnsupportedOpError),
        """\
aten._to_sparse.default: the value of float32[2, 2] on cpu is not known. Fakes are
strided: sparse tensors stay real, and are made of small known values alone""",
    )


def test_unsupported_layout() -> None:
    expect(
        message(lambda: fake_like(torch.eye(2).to_sparse()), UnsupportedOpError),
        """fakes are strided; this tensor has layout torch.sparse_coo""",
    )


def test_wrong_device() -> None:
    fake = fake_like(torch.ones(1))
    expect(
        message(lambda: fake.to("vulkan"), DeviceError),
        """\
a fake tensor cannot be on 'vulkan': fakes are on cpu or cuda, or on another accelerator:
mps, xpu, hpu, mtia, xla, or a backend that is named by
torch.utils.rename_privateuse1_backend""",
    )


def test_wrong_profile() -> None:
    expect(
        message(lambda: fake_mode(fake_cuda="v100"), DeviceError),
        """fake_cuda='v100' may mean v100-16gb or v100-32gb: give one of these names""",
    )


def test_too_many_devices() -> None:
    expect(
        message(lambda: fake_mode(fake_cuda=1000), DeviceError),
        """fake_cuda=1000: a mode has 0 to 120 CUDA devices""",
    )


def test_not_fake() -> None:
    expect(
        message(lambda: meta_like(torch.ones(3)), NotFakeError),
        """meta_like takes a fake tensor, not a real tensor on cpu; see is_fake()""",
    )
    expect(
        message(lambda: meta_like(3), NotFakeError),
        """meta_like takes a fake tensor, not a int; see is_fake()""",
    )  # type: ignore[arg-type]


def test_wrong_types() -> None:
    expect(
        message(lambda: fake_like(3), TypeError),
        """fake_like takes a tensor or a module, not int""",
    )  # type: ignore[type-var]


def test_the_exception_of_torch_is_the_cause() -> None:
    library = torch.library.Library("torchfake_tests_errors", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    with pytest.raises(UnsupportedOpError) as caught:
        torch.ops.torchfake_tests_errors.twice(fake_like(torch.eye(2)))
    assert isinstance(caught.value.__cause__, NotImplementedError)


def test_each_class_has_a_page() -> None:
    docs = Path(__file__).parents[1] / "docs"
    for error in BASES:
        page, _, anchor = error.page.partition("#")
        headings = re.findall(r"^#+ (.*)$", (docs / page).read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
        assert error is TorchFakeError or "page" in vars(error)


def test_every_character_can_be_printed() -> None:
    for first in range(0, sys.maxunicode, 4096):
        text = "".join(map(chr, range(first, min(first + 4096, sys.maxunicode + 1))))
        assert printable(text).isprintable()
        printable(text).encode()
        assert printable(text) != text or text.isprintable()


def test_printable_keeps_what_it_is_told_to() -> None:
    assert printable("a\nb\x1b\t", keep="\n") == "a\nb\\x1b\\t"
    assert printable("é中 \\x1b") == "é中 \\x1b"


def test_messages_are_printable() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        with pytest.raises(kind) as caught:
            raise kind("a\x1b[31m\u202e\ud800\nb")
        assert str(caught.value) == "a\\x1b[31m\\u202e\\ud800\nb"

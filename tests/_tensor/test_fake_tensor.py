"""How fakes print, character by character, and that real tensors print as before meanwhile."""

from __future__ import annotations

import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from torchfake import fake_like, fake_mode

_REPR_AT_IMPORT = torch.Tensor.__repr__


def test_tensors() -> None:
    with fake_mode():
        weight = torch.empty(2, 3)
        lines = [
            weight,
            torch.empty(0),
            torch.zeros(()),
            torch.arange(3),
            torch.ones(2, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            weight.t(),
            torch.ones(1, requires_grad=True),
            weight.requires_grad_() * 2,
            weight.view(-1),
            weight.detach(),
        ]
    expect(
        "\n".join(map(repr, lines)),
        """\
tensor(..., size=(2, 3), requires_grad=True, fake=True)
tensor(..., size=(0,), fake=True)
tensor(..., size=(), fake=True)
tensor(..., size=(3,), dtype=torch.int64, fake=True)
tensor(..., size=(2,), dtype=torch.bfloat16, fake=True)
tensor(..., size=(1,), dtype=torch.complex64, fake=True)
tensor(..., size=(3, 2), requires_grad=True, fake=True)
tensor(..., size=(1,), requires_grad=True, fake=True)
tensor(..., size=(2, 3), grad_fn=<MulBackward0>, fake=True)
tensor(..., size=(6,), grad_fn=<ViewBackward0>, fake=True)
tensor(..., size=(2, 3), fake=True)""",
    )


def test_devices() -> None:
    with fake_mode(fake_cuda=2):
        lines = [torch.empty(2, device="cuda"), torch.zeros(3, dtype=torch.int8, device="cuda:1")]
    expect(
        "\n".join(map(repr, lines)),
        """\
tensor(..., device='cuda:0', size=(2,), fake=True)
tensor(..., device='cuda:1', size=(3,), dtype=torch.int8, fake=True)""",
    )


def test_parameters() -> None:
    with fake_mode():
        layer = nn.Linear(2, 3, dtype=torch.float16)
        frozen = nn.Parameter(torch.arange(2), requires_grad=False)
    expect(
        f"{layer.weight!r}\n{frozen!r}\n{layer.bias.data!r}",
        """\
Parameter containing:
tensor(..., size=(3, 2), dtype=torch.float16, requires_grad=True, fake=True)
Parameter containing:
tensor(..., size=(2,), dtype=torch.int64, fake=True)
tensor(..., size=(3,), dtype=torch.float16, fake=True)""",
    )


def test_modules_print_as_in_eager() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm(4), nn.Sequential(nn.Linear(2, 2)))

    with fake_mode():
        module = build()
    assert repr(module) == repr(build())


def test_containers() -> None:
    with fake_mode():
        parameters = nn.ParameterList([torch.empty(1, 2)])
        nested = {"x": [torch.arange(2), (torch.ones(1),)]}
    expect(
        f"{nested}\n{parameters}\n{dict(nn.ParameterDict({'w': parameters[0]}))}",
        """\
{'x': [tensor(..., size=(2,), dtype=torch.int64, fake=True), (tensor(..., size=(1,), fake=True),)]}
ParameterList(  (0): Parameter containing: [torch.float32 of size 1x2])
{'w': Parameter containing:
tensor(..., size=(1, 2), requires_grad=True, fake=True)}""",
    )


def test_format() -> None:
    with fake_mode():
        unknown, known, number = torch.randn(2), torch.arange(2), torch.tensor(0.5)
        lines = [f"{unknown}", f"{known}", f"{number}", f"{number:.3f}", str(unknown), "%s" % known]  # noqa: UP031
    expect(
        "\n".join(lines),
        """\
tensor(..., size=(2,), fake=True)
tensor(..., size=(2,), dtype=torch.int64, fake=True)
tensor(..., size=(), fake=True)
0.500
tensor(..., size=(2,), fake=True)
tensor(..., size=(2,), dtype=torch.int64, fake=True)""",
    )


def test_default_dtype_is_left_out() -> None:
    fake = fake_like(torch.zeros(1, dtype=torch.float64))
    torch.set_default_dtype(torch.float64)
    try:
        text = repr(fake)
    finally:
        torch.set_default_dtype(torch.float32)
    expect(text, """tensor(..., size=(1,), fake=True)""")


def test_subclasses() -> None:
    with fake_mode():
        lazy = nn.LazyLinear(3)
    expect(f"{type(lazy.weight).__name__}", """UninitializedParameter""")


def test_real_tensors_print_as_before() -> None:
    real = torch.arange(3.0)
    before = repr(real)
    with fake_mode():
        assert torch.Tensor.__repr__ is _REPR_AT_IMPORT
        assert repr(real) == before
        assert repr(torch.empty(2, device="meta")) == "tensor(..., device='meta', size=(2,))"
    assert torch.Tensor.__repr__ is _REPR_AT_IMPORT
    assert torch.Tensor.__repr__.__module__ == "torch._tensor"

"""Python functions of torch, of libraries and of the program run in a mode as they run in eager.

Nothing of a constructor or an initializer is skipped, however often it ran before: so breakpoints,
coverage, replaced functions, changed defaults and changed code are right. The oracle is eager: the
same functions are called in the same order, and what is built has the same attributes and bits.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 4),
    "Linear without bias": lambda: nn.Linear(30, 40, bias=False),
    "Bilinear": lambda: nn.Bilinear(3, 4, 5),
    "Conv1d": lambda: nn.Conv1d(4, 4, 3),
    "Conv2d": lambda: nn.Conv2d(8, 8, 3),
    "ConvTranspose3d": lambda: nn.ConvTranspose3d(4, 4, 3),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
    "BatchNorm2d": lambda: nn.BatchNorm2d(8),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(8, affine=True, track_running_stats=True),
    "Embedding": lambda: nn.Embedding(10, 8, padding_idx=1),
    "EmbeddingBag": lambda: nn.EmbeddingBag(10, 8),
    "PReLU": lambda: nn.PReLU(4),
    "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2),
    "LSTM": lambda: nn.LSTM(4, 4),
    "GRUCell": lambda: nn.GRUCell(4, 4),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
}

MODES = {"fake": fake_mode, "deferred": deferred_mode}

_NOT_COMPARED = frozenset({"__instancecheck__"})
"""Python itself decides whether to ask a metaclass: not if a class is the very one asked for."""


def functions_called(build: Callable[[], Any], *folders: str) -> list[str]:
    """The Python functions of some folders that run in a call, in their order."""
    names: list[str] = []

    def see(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_there = any(folder in code.co_filename for folder in folders)
        if event == "call" and is_there and code.co_name not in _NOT_COMPARED:
            names.append(f"{code.co_filename}:{code.co_firstlineno} {code.co_name}")

    sys.setprofile(see)
    try:
        build()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_call_what_they_call_in_eager(name: str, mode: str) -> None:
    build = LAYERS[name]
    eager = functions_called(build, "/torch/nn/")
    with MODES[mode]():
        for _ in range(20):
            assert functions_called(build, "/torch/nn/") == eager


def llama() -> nn.Module:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=3, vocab_size=20)
    return transformers.AutoModel.from_config(config)  # type: ignore[no-any-return]


def marian() -> nn.Module:
    """Its table of sines is filled in numpy, element by element."""
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 8)
    config = transformers.MarianConfig(
        **sizes, d_model=8, encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=20,
        max_position_embeddings=12, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.AutoModel.from_config(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", [llama, marian])
def test_models_call_what_they_call_in_eager(build: Any, mode: str) -> None:
    folders = "/transformers/models/", "/transformers/modeling", "/torch/nn/"
    build()  # imports
    eager = functions_called(build, *folders)
    with MODES[mode]():
        for _ in range(3):
            assert functions_called(build, *folders) == eager


# What is changed takes effect, however often a layer was built before.


def outcome(build: Callable[[], nn.Module], *, is_deferred: bool) -> Any:
    """The attributes of each module, and the bits of each tensor; or the error."""
    torch.manual_seed(3)
    try:
        module = materialize_module(deferred_init(build)) if is_deferred else build()
    except Exception as error:
        return type(error), str(error)
    kinds = (bool, int, float, str, tuple)
    attributes = [
        {name: value for name, value in vars(each).items() if isinstance(value, kinds)}
        for each in module.modules()
    ]
    tensors = {name: t.tolist() for name, t in module.state_dict().items()}
    return repr(attributes), repr(tensors), torch.get_rng_state().tolist()


def assert_as_eager(build: Callable[[], nn.Module]) -> None:
    eager = outcome(build, is_deferred=False)
    assert outcome(build, is_deferred=True) == eager
    with fake_mode():
        module = None if isinstance(eager[0], type) else build()
    for name, value in vars(module).items() if module is not None else ():
        if isinstance(value, (bool, int, float, str, tuple)):
            assert f"{name!r}: {value!r}" in eager[0]


def functions_that_build() -> Iterator[tuple[Any, types.FunctionType]]:
    """The functions with defaults that layers are built by, and one layer of each."""
    for build in LAYERS.values():
        for cls in type(build()).__mro__[:-1]:
            for function in vars(cls).values():
                if isinstance(function, types.FunctionType) and function.__name__ in (
                    *("__init__", "reset_parameters", "_reset_parameters"),
                    *("reset_running_stats", "register_buffer"),
                ):
                    yield build, function
    for name, function in vars(nn.init).items():
        if name.endswith("_") and isinstance(function, types.FunctionType):
            yield LAYERS["TransformerEncoderLayer"], function
            yield LAYERS["Embedding"], function
    yield LAYERS["Linear"], nn.init.calculate_gain
    yield LAYERS["Linear"], nn.Parameter.__new__


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value * 3 + 1 if isinstance(value, (int, float)) else value


CHANGED = {
    f"{f.__module__}.{f.__qualname__} of {build().__class__.__name__}": (build, f)
    for build, f in functions_that_build()
    if f.__defaults__ is not None and f.__defaults__ != tuple(map(changed, f.__defaults__))
}


@pytest.fixture(scope="module", autouse=True)
def _built_before() -> None:
    for mode in MODES.values():
        with mode():
            for build in (*LAYERS.values(),) * 4:
                build()


@pytest.mark.filterwarnings("ignore")  # torch's own, of what the changed defaults mean
@pytest.mark.parametrize("name", CHANGED)
def test_changed_defaults_take_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, function = CHANGED[name]
    defaults = tuple(map(changed, function.__defaults__ or ()))
    monkeypatch.setattr(function, "__defaults__", defaults)
    assert_as_eager(build)


def test_the_cases_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.LayerNorm.__init__, "__defaults__", (1e-3, True, True, None, None))
    with fake_mode():
        assert nn.LayerNorm(8).eps == 1e-3
    monkeypatch.setattr(nn.init.normal_, "__defaults__", (0.0, 0.02, None))
    assert_as_eager(lambda: nn.Embedding(100, 8))


def _reset_to_sevens(self: Any) -> None:
    for parameter in self.parameters():
        torch.nn.init.constant_(parameter, 7.0)  # by the names of any module of torch


@pytest.mark.parametrize("name", ["Linear", "LayerNorm", "Conv2d", "Embedding"])
def test_changed_code_takes_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = type(LAYERS[name]())
    function: Any = next(
        vars(c)["reset_parameters"] for c in layer.__mro__ if "reset_parameters" in vars(c)
    )
    monkeypatch.setattr(function, "__code__", _reset_to_sevens.__code__)
    assert_as_eager(LAYERS[name])
    assert set(materialize_module(deferred_init(LAYERS[name])).weight.unique().tolist()) == {7.0}


def test_a_replaced_function_of_math_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "sqrt", lambda _: 0.125)
    for name in ("Linear", "Conv2d", "LSTM", "Bilinear", "MultiheadAttention"):
        assert_as_eager(LAYERS[name])


NAMES_REPLACED = ["uniform_", "normal_", "ones_", "zeros_", "_no_grad_fill_", "_no_grad_uniform_"]


@pytest.mark.parametrize("name", NAMES_REPLACED)
def test_replaced_initializers_take_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(tensor: Any, *_: Any, **__: Any) -> Any:
        with torch.no_grad():
            return tensor.fill_(0.5)

    monkeypatch.setattr(nn.init, name, fill)
    for build in LAYERS.values():
        assert_as_eager(build)


def test_a_replaced_constructor_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    original = nn.Module.__init__

    def tagged(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.tag = len(args)

    monkeypatch.setattr(nn.Module, "__init__", tagged)
    for build in LAYERS.values():
        assert_as_eager(build)


def test_each_layer_stops_at_a_breakpoint() -> None:
    """As ``sys.settrace`` sees it: by a debugger, or coverage."""
    stops: list[int] = []

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code is nn.Linear.reset_parameters.__code__ and event == "line":
            stops.append(frame.f_lineno)
        return trace

    def build() -> list[int]:
        stops.clear()
        sys.settrace(trace)
        try:
            for _ in range(5):
                nn.Linear(3, 4)
        finally:
            sys.settrace(None)
        return stops.copy()

    eager = build()
    assert len(eager) > 5
    for mode in MODES.values():
        with mode():
            build()
            assert build() == eager


def test_no_function_of_a_layer_is_replaced_in_a_mode() -> None:
    """But for the constructor of parameters, which calls torch's."""
    classes = {cls for build in LAYERS.values() for cls in type(build()).__mro__}

    def seen() -> dict[str, Any]:
        return {
            f"{owner.__name__}.{name}": value
            for owner in (*classes, nn.init, *map(inspect.getmodule, classes))
            if owner is not None
            for name, value in vars(owner).items()
            if callable(value) and not name.startswith("__doc")
        }

    before = seen()
    for mode in MODES.values():
        with mode():
            after = seen()
        different = {name for name in before if before[name] is not after[name]}
        assert different <= {"torch.nn.init._no_grad_trunc_normal_"}, different

"""Public names: no frame of ours is around a public call, and a misspelt name is answered."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import traceback
from typing import Any

import pytest

import torchfake
from torchfake import errors
from torchfake.errors import did_you_mean

MODULES = ("torchfake", "torchfake.inspect", "torchfake.distributed", "torchfake.fx")
PUBLIC = {
    f"{home}.{name}": getattr(module, name)
    for home in MODULES
    for module in [importlib.import_module(home)]
    for name in module.__all__
    if not inspect.ismodule(getattr(module, name))
}


def called(value: Any) -> Any:
    """The function that runs when a public function or class is called."""
    return value.__init__ if isinstance(value, type) else value


@pytest.mark.parametrize("name", PUBLIC)
def test_nothing_is_wrapped_around_a_public_call(name: str) -> None:
    function = called(PUBLIC[name])
    assert inspect.unwrap(function) is function
    assert function.__name__ in (name.rpartition(".")[2], "__init__")
    if inspect.isfunction(function):
        assert function.__code__.co_name == function.__name__


FIXED = [
    name
    for name, value in PUBLIC.items()
    if inspect.isfunction(value) and not value.__code__.co_flags & inspect.CO_VARKEYWORDS
]
"""Functions that do not pass keyword arguments on."""


@pytest.mark.parametrize("name", FIXED)
def test_a_call_that_does_not_fit_ends_in_the_line_of_the_user(name: str) -> None:
    function = PUBLIC[name]
    with pytest.raises(TypeError, match=r"not_there|takes (no|0)") as caught:
        function(not_there=1)
    assert [frame.filename for frame in traceback.extract_tb(caught.tb)] == [__file__]


def test_a_call_runs_the_function_itself() -> None:
    """The first frame below that of the user is the public function."""
    with pytest.raises(errors.NotFakeError) as caught:
        torchfake.meta_like(3)  # type: ignore[arg-type]
    assert [frame.name for frame in traceback.extract_tb(caught.tb)][1] == "meta_like"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("defered_init", "; did you mean torchfake.deferred_init?"),
        ("Fake_Mode", "; did you mean torchfake.fake_mode?"),
        ("Strategy", "; did you mean torchfake.distributed.Strategy?"),
        ("symbolic_tracer", "; did you mean torchfake.fx.symbolic_trace?"),
        ("nothing_like_it", "'nothing_like_it'"),
        ("_fake_mode", "'_fake_mode'"),
    ],
)
def test_misspelt_names(name: str, said: str) -> None:
    assert not hasattr(torchfake, name)
    with pytest.raises(AttributeError) as caught:
        getattr(torchfake, name)
    assert str(caught.value).startswith(f"module 'torchfake' has no attribute {name!r}")
    assert said in str(caught.value)
    assert "?" in said or str(caught.value).endswith(said)


def test_a_suggestion_is_made_once() -> None:
    program = "import torchfake; torchfake.defered_init"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.lower().count("did you mean") == 1


def test_names_of_submodules_are_there() -> None:
    for path in torchfake._IN_SUBMODULES:
        home, _, name = path.rpartition(".")
        assert name in importlib.import_module(f"torchfake.{home}").__all__


def test_did_you_mean() -> None:
    assert did_you_mean("inspct", ["inspect", "init", "fit"]) == "; did you mean inspect?"
    assert (
        did_you_mean("num_layer", ["num_hidden_layers", "x"]) == "; did you mean num_hidden_layers?"
    )
    assert did_you_mean("num_layer", ["number", "lay_num"]) == ""
    assert did_you_mean("PLAN", ["plans", "Plane"]) == "; did you mean plans or Plane?"
    assert did_you_mean("plan", ["plans", "plane"], lambda name: name[:3]) == "; did you mean pla?"
    assert did_you_mean("summary", ["fit"]) == ""
    assert did_you_mean("x" * 10_000, ["x" * 10_000]) == ""

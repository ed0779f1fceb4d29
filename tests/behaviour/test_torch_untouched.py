"""torch is as it was once the modes are left and the fakes are gone.

All modules and classes of torch are compared (``tests/behaviour/torch_state``), in processes of
their own. What is left is listed here and in docs/design.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.behaviour import torch_state
from torchfake._torch.compiler import scripts

ROOT = Path(__file__).parents[2]

LEFT = {
    # Operators have kernels for fakes and borrowed dispatch keys: they run for nothing else.
    "kernels": (
        "*.functorch_table[]",
        "*.non_fallthrough_keys",
        "*.py_kernels[]",
        "*.python_key_table[]",
        "torch._library.simple_registry.singleton._data[]",
        "torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS[]",
        "torch.library._impls[]",
    ),
    # Dynamo does not trace torchfake. Its list has no way back, and is to be there before a mode.
    "skipped files": (
        "torch._dynamo.trace_rules.SKIP_DIRS[]",
        "torch._dynamo.trace_rules.SKIP_DIRS_RE",
    ),
    # torch.load(weights_only=True) may rebuild fakes.
    "safe globals": (
        "torch._weights_only_unpickler._marked_safe_globals_set",
        "torch._weights_only_unpickler._marked_safe_globals_set[]",
    ),
    # torch.jit.script compiles replacements as what they replace, in the next mode too.
    "scripted replacements": ("torch.jit._builtins._builtin_table[]",),
}

FILLED_BY_TORCH = (
    "threading._active[]",  # a thread that waits for work
    "torch._dynamo.eval_frame.cached_backends[]",
    "torch._dynamo.mutation_guard:GenerationTracker.generation",  # counts modules
    "torch._dynamo.utils.graph_break_dup_warning_checker.set",
    "torch._ops.ops.*",  # operators are looked up by name
    "torch._subclasses.fake_tensor:FakeTensorMode.cache_hits",
    "torch._subclasses.fake_tensor:FakeTensorMode.cache_misses",
    "torch._subclasses.fake_tensor:FakeTensorMode.cache[]",
    "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID",
    "torch.fx.graph_module._loader.*",  # the source of traced graphs
    "torch.utils.hooks:RemovableHandle.next_id",  # counts hooks
)
"""Counters and caches that fill when the same is done with real tensors."""

WHILE_A_FAKE_LIVES = {
    *(
        f"torch.distributed.tensor:DTensor.is_{name}"
        for name in ("cpu", "cuda", "meta", "mps", "mtia", "xpu")
    ),
    *(f"torch.distributed.tensor:DTensor.{name}" for name in ("device", "get_device", "type")),
    "torch.get_device",
    "torch.autograd._make_grads",
    *(
        f"torch.autograd.function:BackwardCFunction.{name}"
        for name in ("apply", "apply_boxed")
        if hasattr(torch.autograd.function.BackwardCFunction, name)
    ),
    "torch._dynamo.compiled_autograd._enable",
    "torch._dynamo.convert_frame:CatchErrorsWrapper.__call__",
    "torch._dynamo.eval_frame._callback_from_stance",
    "torch._higher_order_ops.cond:CondOp.__call__",
    "torch.fx.experimental.proxy_tensor.HANDLED_TYPES",
    "torch.nn.attention.flex_attention._warn_once",
    "torch.nn.parallel.distributed:DistributedDataParallel._build_params_for_reducer",
    "sys.meta_path[]",
    "torch.jit:torch.jit.ScriptFunction.__call__",
    "torch:ScriptMethod.__call__",
    *(f"torch._C.{name}" for name in scripts.FOLDING),
    *(f"torch._C.{name}" for owner, name in scripts.READING + scripts.WRITING if owner is torch._C),
    *(f"torch:ScriptModule.{name}" for owner, name in scripts.WRITING if owner is not torch._C),
    *(f"torch:{kind}.__{how}__" for kind in ("Graph", "Node") for how in ("repr", "str")),
    *(f"torch._C._create_function_from_trace{end}" for end in ("", "_with_dict")),
    *(f"torch:ScriptModule._create_method_from_trace{end}" for end in ("", "_with_dict")),
    "torch.jit._trace._check_trace",
}


class Watched:
    """A class of torch, as far as a snapshot knows."""

    __module__ = "torch.test_of_a_snapshot"
    names = ("a", "b")

    def method(self, number: int = 1) -> int:
        return number


def _leave_a_finder() -> None:
    sys.meta_path.append(Watched)


CHANGES: dict[str, Callable[[], Any]] = {
    "Watched.names": lambda: setattr(Watched, "names", ("a", "b", "c")),
    "Watched.method": lambda: setattr(Watched, "method", lambda self: 2),
    "Watched.method.__defaults__": lambda: setattr(Watched.method, "__defaults__", (3,)),
    "Watched.extra": lambda: setattr(Watched, "extra", property(lambda self: 1)),
    "sys.meta_path[]": _leave_a_finder,
}


def test_every_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.test_of_a_snapshot")
    module.Watched = Watched
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("names", "method"):
        monkeypatch.setattr(Watched, name, getattr(Watched, name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch_state.snapshot()
        for change in CHANGES.values():
            change()
        changed = torch_state.changes(before, torch_state.snapshot())
    assert [path for path in CHANGES if not any(each.endswith(path) for each in changed)] == []
    Watched.method.__defaults__ = (1,)


@cache
def run(part: str) -> Any:
    command = [sys.executable, "-m", "tests.behaviour.torch_program", part]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=300)
    return json.loads(done.stdout)


def matching(changed: dict[str, str], *patterns: str) -> set[str]:
    return {path for path in changed if any(fnmatchcase(path, each) for each in patterns)}


def named(pattern: str) -> str:
    return pattern.replace("[]", "[[]]")  # brackets stand for characters otherwise


def of_functions(changed: dict[str, str]) -> set[str]:
    """Without what a change of a function changes inside it."""
    inner = (".__code__", ".__defaults__", ".__kwdefaults__", ".__wrapped__")
    return {path for path in changed if not path.endswith(inner)}


def test_what_is_left_of_a_program() -> None:
    assert len(LEFT) <= 4
    found = run("warm")
    imported = {path for path, text in found["changed"].items() if "-> <module" in text}
    changed = {path: found["changed"][path] for path in found["changed"].keys() - imported}
    for patterns in LEFT.values():
        assert matching(changed, *map(named, patterns)), patterns
    known = [named(each) for patterns in LEFT.values() for each in patterns]
    known += map(named, FILLED_BY_TORCH)
    unknown = {path: changed[path] for path in changed.keys() - matching(changed, *known)}
    assert not unknown


def test_nothing_of_torchfake_is_in_a_namespace_of_torch() -> None:
    assert run("warm")["ours"] == run("fakes")["ours"] == run("real")["ours"] == []


def test_torch_is_as_after_the_same_program_on_real_tensors() -> None:
    """Dynamo and DTensor are imported inside a mode, and after it."""
    fakes, real = run("fakes")["functions"], run("real")["functions"]
    assert len(real.keys() & fakes.keys()) > 50_000
    assert {
        path: fakes[path] for path in real.keys() & fakes.keys() if fakes[path] != real[path]
    } == {}


def test_what_is_replaced_as_long_as_a_fake_lives() -> None:
    found = run("alive")
    known = [*WHILE_A_FAKE_LIVES, *FILLED_BY_TORCH]
    changed = of_functions(found["alive"])
    assert changed - matching(found["alive"], *map(named, known)) == set()
    assert changed >= WHILE_A_FAKE_LIVES
    assert found["after"].keys() == matching(found["after"], *map(named, FILLED_BY_TORCH))

"""Guessed calls that do not fit, answered with those that do.

Input: a public function or class, called with arguments that it does not take. Output: an error of
one line that says what to write. Invariant: a call that fits costs one more frame and no look-up;
signatures stay as they are; torch is not imported.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeVar

from torchfake._gpu_names import listed
from torchfake.errors import DOCUMENTATION, CallError

_T = TypeVar("_T", bound=Callable[..., Any])
_Parameters = Mapping[str, Parameter]

_LENGTHS = "seq_len seq_length seqlen sequence_length max_length max_len max_seq_len max_tokens"
_OTHER_NAMES = {
    "batch": "batch_size bs micro_batch_size per_device_train_batch_size train_batch_size",
    "users": "batch batch_size bs max_num_seqs num_seqs max_batch_size concurrency",
    "seq": _LENGTHS,
    "context": f"seq {_LENGTHS} max_model_len max_seq_length context_length ctx n_ctx",
    "gpus": "num_gpus n_gpus ngpus world_size num_devices n_devices",
    "gpu": "gpu_name gpu_type card hardware",
    "optimizer": "optim opt optimiser",
    "mesh_shape": "mesh device_mesh shape",
    "depth": "max_depth level levels",
    "threads": "num_threads n_threads workers num_workers n_jobs",
    "checkpoint": "state_dict weights ckpt path gradient_checkpointing activation_checkpointing "
    "checkpointing recompute",
    "check_fn": "filter filter_fn fn predicate condition",
    "buffers_only": "buffers include_buffers",
    "microbatches": "num_microbatches micro_batches n_microbatches gradient_accumulation_steps",
    "accumulate": "gradient_accumulation_steps grad_accum accumulation_steps",
    "zero": "zero_stage stage",
    "offload": "cpu_offload offload_optimizer offload_param",
    "precision": "dtype mixed_precision",
    "cache_dtype": "kv_cache_dtype kv_dtype dtype",
    "prefill": "max_num_batched_tokens prefill_chunk_size chunk_size",
    "cache": "kv_cache cache_implementation",
    "total_memory": "memory vram bytes",
    "target": "model model_name name",
    "path": "out output filename file save_path directory",
    "max_shard_size": "shard_size max_size",
}
"""By the name of a parameter, the names that other libraries have for the same."""


class _Advice(NamedTuple):
    """What to write in place of what does not fit."""

    positional: str  # for more by position than there is
    function: str  # for a function or class among that
    keywords: Mapping[str, str]


def advised(positional: str = "", *, function: str = "", **keywords: str) -> Callable[[_T], _T]:
    """Decorator of functions and classes: a call that does not fit is answered with one that does.

    Args:
        positional: what to write, where more arguments are given by position than there are;
            ``{name}`` stands for what was called.
        function: the same, where the first of these is a function or class.
        keywords: by a keyword argument that does not exist, what to write. Others are answered with
            the parameter that means the same, or is spelt nearly so, or else with all of them.
    """
    advice = _Advice(positional, function or positional, keywords)

    def decorate(target: Any) -> Any:
        if not isinstance(target, type):
            return _checked(target, advice)
        if issubclass(target, tuple):  # a NamedTuple
            target.__new__ = staticmethod(  # type: ignore[method-assign]
                _checked(target.__new__, advice)
            )
        else:
            target.__init__ = _checked(target.__init__, advice)  # type: ignore[method-assign]
        return target

    return decorate


def _checked(called: Any, advice: _Advice) -> Any:
    takes_any_keyword = called.__code__.co_flags & 8  # inspect.CO_VARKEYWORDS

    @functools.wraps(called)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if takes_any_keyword:
            _refuse(called, args, kwargs, advice)
        try:
            return called(*args, **kwargs)
        except TypeError as error:
            traceback = error.__traceback__
            if traceback is None or traceback.tb_next is not None:
                raise  # from within: the call itself fitted
            message = _Call(called, args, kwargs).answer(advice)
            if not message:
                raise
        raise CallError(message)

    return checked


def _refuse(called: Any, args: Any, kwargs: Any, advice: _Advice) -> None:
    for keyword in kwargs:
        if keyword in advice.keywords:
            raise CallError(_Call(called, args, kwargs).answer_to(keyword, advice))


class _Call:
    """A call that does not fit."""

    def __init__(self, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_method = called.__name__ in ("__init__", "__new__")
        parameters = list(signature(called).parameters.values())
        self.name, self.args = called.__qualname__, args
        if is_method:
            kind = args[0] if isinstance(args[0], type) else type(args[0])
            self.name, self.args, parameters = kind.__name__, args[1:], parameters[1:]
        self.kwargs = kwargs
        self.parameters = {parameter.name: parameter for parameter in parameters}

    def answer(self, advice: _Advice) -> str:
        """What is wrong with it and what to write; "" if that is not seen."""
        takes_any = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        unknown = [name for name in self.kwargs if name not in self.parameters]
        if unknown and not takes_any:
            told = (name for name in unknown if name in advice.keywords)  # says most
            return self.answer_to(next(told, unknown[0]), advice)
        by_position = [
            p.name
            for p in self.parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if surplus := self.args[len(by_position) :]:
            return self._too_many(surplus, len(by_position), advice)
        given = {*by_position[: len(self.args)], *self.kwargs}
        missing = [n for n, p in self.parameters.items() if _is_required(p) and n not in given]
        return f"{self.name} needs {_all(missing)}: write {self._form()}" if missing else ""

    def answer_to(self, keyword: str, advice: _Advice) -> str:
        """What to write in place of an argument that there is not."""
        refused = f"{self.name} has no {keyword}="
        if keyword in advice.keywords:
            return f"{refused}: {advice.keywords[keyword]}"
        for name, others in _OTHER_NAMES.items():
            if name in self.parameters and keyword.lower() in others.split():
                return f"{refused}: write {name}="
        named = [n for n, p in self.parameters.items() if p.kind is not p.VAR_POSITIONAL]
        if len(keyword) < 60 and (close := difflib.get_close_matches(keyword, named, cutoff=0.7)):
            return f"{refused}; did you mean {listed([f'{name}=' for name in close])}?"
        takes = f"it takes {_all(named)}" if named else "it takes no argument by name"
        return f"{refused}: {takes}; see {DOCUMENTATION}api.md"

    def _too_many(self, surplus: tuple[Any, ...], number: int, advice: _Advice) -> str:
        first = surplus[0]
        is_code = callable(first)
        shown = getattr(first, "__name__", "") if is_code else ""
        if not shown:
            is_short = isinstance(first, (str, int, float)) and len(repr(first)) <= 60
            shown = repr(first) if is_short else f"of type {type(first).__name__}"
        told = (advice.function if is_code else advice.positional).replace("{name}", self.name)
        takes = f"it takes {number} by position, not {len(self.args)}: write {self._form()}"
        return f"{self.name}({'' if not number else '..., '}{shown}): {told or takes}"

    def _form(self) -> str:
        """The call with what it needs; ``...`` for all else."""
        parts = [
            f"{name}=..." if p.kind is p.KEYWORD_ONLY else name
            for name, p in self.parameters.items()
            if _is_required(p)
        ]
        optional = ["..."] if len(parts) < len(self.parameters) else []
        return f"{self.name}({', '.join(parts + optional)})"


def _is_required(parameter: Parameter) -> bool:
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variadic


def _all(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

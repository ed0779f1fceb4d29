"""Adapters of PEFT on a fake copy.

Input: a fake copy and a config of PEFT. Output: a fake copy whose module has them. Invariant:
neither the config nor what was given is changed.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torchfake.errors import InputsError, MissingExtraError
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.messages import one_line


def with_adapters(fake_copy: FakeCopy, config: Any) -> FakeCopy:
    """The fake copy with the adapters of a config, as ``peft.get_peft_model`` adds them.

    Raises:
        InputsError: if it is no config of PEFT, or does not fit the module.
        MissingExtraError: if PEFT is not installed.
    """
    if not any(cls.__module__.split(".")[0] == "peft" for cls in type(config).__mro__):
        raise InputsError(f"peft= is a {type(config).__name__}: give a config, such as LoraConfig")
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft= needs the library: pip install peft") from error
    if not isinstance(config, peft.PeftConfig):
        raise InputsError(f"peft= is a {type(config).__name__}: give a config, such as LoraConfig")
    try:
        with fake_copy.mode():
            module = peft.get_peft_model(fake_copy.module, copy.deepcopy(config))
    except (ValueError, TypeError, NotImplementedError) as error:
        name = type(fake_copy.module).__name__
        raise InputsError(f"{name} does not take these adapters: {one_line(error)}") from error
    return replace(fake_copy, module=module)

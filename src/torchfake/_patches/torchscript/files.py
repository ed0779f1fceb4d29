"""Scripts that are read from a file in a mode, or written with fakes.

Input: C++'s functions that read and write modules in TorchScript. Output: a module of real tensors,
as the file has them, and an error for one of fakes. Invariant: C++, which reads and writes memory
past the dispatcher, never does so for a fake.
"""

from __future__ import annotations

from typing import Any

from torchfake._patches import while_fakes_live
from torchfake._patches.patch import replacing
from torchfake._patches.torchscript.folding import as_outside_modes
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch.compiler import scripts
from torchfake._torch.compiler.python_functions import Replacement
from torchfake.errors import UnknownValueError


@replacing
def _writing(original: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
    fakes = [each for each in scripts.tensors_of(module) if isinstance(each, FakeTensor)]
    if fakes:
        remedy = "call torchfake.materialize_module on the module before torch.jit.script"
        if not any(map(is_deferred_fake, fakes)):
            remedy = "build the module outside of the mode, or with torchfake.deferred_init"
        raise UnknownValueError(
            f"torch.jit.save writes values, and {len(fakes)} parameters and buffers of the "
            f"module have none, since they are fake: {remedy}"
        )
    return original(module, *args, **kwargs)


def _replacements() -> list[Replacement]:
    reading = [(owner, name, as_outside_modes) for owner, name in scripts.READING]
    return [*reading, *((owner, name, _writing) for owner, name in scripts.WRITING)]


while_fakes_live.replacements["torch.jit._serialization"] = _replacements

"""The exceptions that torchfake raises, and helpers for their messages.

Input: names, and text of unknown origin. Output: the exception classes, and text that is safe to
print. Invariant: the docstring of each class says what happened, why, and which code avoids it;
only the standard library is imported. Calls that eager torch refuses (wrong shapes, two devices in
one operation) raise torch's own exceptions, with torch's messages.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

DOCUMENTATION = "https://github.com/torchfake/torchfake/blob/main/docs/"
"""The URL below which the pages of all exceptions are."""

__all__ = [
    "AnswerError", "CacheError", "ChangedValueError", "CheckError", "CheckpointError",
    "DeviceError", "InputsError", "MaterializeError", "MissingExtraError", "NotDeferredError",
    "NotFakeError", "RankMismatchError", "RealTensorWriteError", "RecordError", "ReplayError",
    "TargetError", "TorchFakeError", "TraceError", "UnknownValueError", "UnsupportedOpError",
]  # fmt: skip


class TorchFakeError(Exception):
    """The base class of the exceptions: ``except TorchFakeError`` catches all of them.

    Control characters in messages, as in the names of files and tensors, are escaped.

    Attributes:
        page: the page of the documentation about the exception, below :data:`DOCUMENTATION`.
    """

    page = "api.md#errors"

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class NotFakeError(TorchFakeError, ValueError):
    """A function that takes fake tensors was given something else.

    ::

        meta_like(torch.ones(3))             # NotFakeError: a real tensor has no fake metadata

    Check with :func:`torchfake.is_fake` first, or make a fake copy: ``fake_like(tensor)``.
    """

    page = "api.md#meta_like"


class NotDeferredError(TorchFakeError, ValueError):
    """A function that takes deferred tensors was given something else.

    Operations in :func:`torchfake.fake_mode` are not recorded, so its tensors cannot be
    materialized::

        with fake_mode():
            layer = torch.nn.Linear(3, 4)
        materialize_module(layer)            # NotDeferredError

    Build with :func:`torchfake.deferred_init` instead. Real tensors are accepted, and returned as
    they are.
    """

    page = "deferred_init.md#in-place"


class UnknownValueError(TorchFakeError, ValueError):
    """The program reads the value of a fake tensor, and the value is not known.

    A fake has shape, strides, dtype and device, but no data. Small tensors computed from host data
    (``torch.arange(8)``) have known values; weights, activations and random floats do not, so the
    program cannot branch on them::

        with fake_mode():
            x = torch.randn(8)
            if x.sum() > 0:                  # UnknownValueError
                ...

    Remove the branch from the code that is inspected, use a Python number or a small
    ``torch.tensor(1.0)`` in it, or skip it for fakes (``if not is_fake(x): ...``).
    """

    page = "limits.md#values-that-are-not-known"


class AnswerError(TorchFakeError, ValueError):
    """The answer to a question about unknown values is invalid.

    A function that is passed as ``fake_mode(answer=...)`` gets a :class:`torchfake.Question` and
    answers it, or returns None to decline. A value is a number, or a tensor, array or list of the
    requested shape; a count is an int between the bounds of the question::

        with fake_mode(answer=lambda question: -1):
            x = torch.randn(100)
            x[x > 0]                         # AnswerError: a count is 0 to 100
    """

    page = "concepts.md#code-that-reads-unknown-values"


class RealTensorWriteError(TorchFakeError, ValueError):
    """An operation with a fake among its arguments would write into a real tensor.

    The values to write do not exist, so the values of the real tensor would be lost::

        real = torch.zeros(3)
        real.add_(fake)                      # RealTensorWriteError

    Write out of place (``real + fake`` is a fake), or write into the fake copy::

        fake_like(real).add_(fake)
    """

    page = "concepts.md#real-tensors-beside-fakes"


class UnsupportedOpError(TorchFakeError, NotImplementedError):
    """The metadata of an operator's results cannot be computed.

    torch has neither a meta kernel nor a decomposition for it. Register a meta kernel for a custom
    operator with ``torch.library.register_fake("mylib::op")``; docs/adding_an_op.md shows how to
    add a rule to torchfake itself.
    """

    page = "adding_an_op.md#an-operator-of-your-own"


class DeviceError(TorchFakeError, ValueError):
    """A device that fakes cannot report, or an unknown device profile, was requested; or a device
    to materialize on that this machine does not have, or that has no values (``meta``).

    Fakes are on ``cpu`` or ``cuda``. :func:`torchfake.profiles` lists the profiles.
    """

    page = "fake_devices.md#which-devices"


class MissingExtraError(TorchFakeError, ImportError):
    """A part of torchfake needs a package that is not installed.

    The message has the command that installs it, for instance ``pip install "torchfake[cli]"``.
    """

    page = "api.md#errors"


class TargetError(TorchFakeError, ValueError):
    """The command line cannot build a model from its TARGET.

    The message has the forms of a TARGET: ``transformers:ClassName``, the path of a
    ``config.json``, an id of the Hub, ``package.module:callable`` and others.
    """

    page = "api.md#command-line"


class CacheError(TorchFakeError, AssertionError):
    """A cached result of an operation differs from the result of its kernel.

    Raised only while ``TORCHFAKE_CHECK_CACHE=1`` is set, which runs the kernel on each cache hit
    and compares. It is a bug of torchfake, or of a kernel whose results depend on more than its
    arguments. ``TORCHFAKE_CACHE=0`` switches the cache off.
    """

    page = "concepts.md#what-is-cached"


class RecordError(TorchFakeError, ValueError):
    """An operation on a deferred tensor cannot be recorded.

    Its arguments must still exist when it is replayed, as numbers, dtypes and tensors do. An open
    file or a handle of some library may not. Real tensors are kept by reference, and a write to one
    is detected by its version counter; inference tensors have none, and large ones are refused::

        with torch.inference_mode():
            table = torch.randn(1 << 20)     # real
        weight.copy_(table)                  # RecordError; table.clone() made outside is accepted

    A bare storage of a deferred tensor cannot be saved either: save the tensor.
    """

    page = "deferred_init.md#limits"


class ReplayError(TorchFakeError, RuntimeError):
    """A recorded operation cannot be replayed.

    The message names the operation, and the line of your code that called it. Either its kernel
    failed (out of memory); or a real tensor among its arguments was written since; or it depends on
    values that never existed: a plain fake was written into a deferred tensor, as happens to the
    running statistics in a forward pass on fake inputs::

        with fake_mode():
            model(torch.ones(2, 3, 8, 8))    # writes running_mean, in training
        materialize_module(model)            # ReplayError

    Call ``model.eval()`` before such a pass, or run it on a ``copy.deepcopy`` of the model. Tensors
    that were materialized before the error stay real, and the others stay deferred.
    """

    page = "materialize.md#limits"


class MaterializeError(TorchFakeError, RuntimeError):
    """A deferred tensor cannot be materialized in place.

    All references to the tensor refer to the real one afterwards. But a live autograd graph would
    still hold the fake, and its gradients would be lost::

        output = model(inputs)
        materialize_module(model)            # MaterializeError: del output first

    Also refused: the result of a differentiable operation, whose autograd history cannot be
    materialized (detach it), and a device that this machine does not have (pass ``device=``).
    """

    page = "deferred_init.md#in-place"


class ChangedValueError(TorchFakeError, ValueError):
    """A module cannot be dematerialized: its values differ from the recorded ones.

    ``dematerialize_module`` frees memory only if a replay gives the same bits again, which it does
    not for a trained weight: save the weight first, or exclude it with ``check_fn``.
    """

    page = "deferred_init.md#in-place"


class CheckpointError(TorchFakeError, ValueError):
    """A checkpoint cannot be read into a module, or cannot be written.

    On reading, the message lists all problems at once, by name: tensors of another shape, and
    tensors that the module does not have; or that the file is truncated, is no checkpoint, or would
    run code when read. The module has not been changed::

        materialize_module(model, checkpoint="model.safetensors")  # CheckpointError
        materialize_module(model, checkpoint="model.safetensors", strict=False)  # all that fits

    On writing: the directory contains another model, or safetensors files cannot store a tensor.
    """

    page = "materialize.md#from-files"


class RankMismatchError(TorchFakeError, RuntimeError):
    """The ranks of a mesh have not recorded the same operations.

    Each rank materializes its shards of a module from what it has recorded, so all ranks must build
    the same model from the same random state. The message names the ranks that differ from the
    majority, and the first parameter that differs. It is raised on all ranks, before any parameter
    is materialized::

        torch.manual_seed(dist.get_rank())   # use the same seed on all ranks
        model = deferred_init(Model, config)
        fully_shard(model, mesh=mesh)
        materialize_module(model)            # RankMismatchError

    Where one rank alone has the weights, ``materialize_module(model, from_rank=0)`` on all ranks
    sends them. Then only names, shapes and dtypes have to be equal.
    """

    page = "distributed/index.md#what-all-ranks-have-to-do"


class CheckError(TorchFakeError, ValueError):
    """A module does not run on the given inputs.

    The message names the submodule that was running, the operation, its arguments with shape, dtype
    and device, and the line of code; these are attributes of the exception too. Its cause is the
    original exception::

        check(model, torch.ones(2, 5))       # CheckError: in layers.3.mlp: linear(...)

    A real run raises the same error: correct the inputs, or the module.
    """

    page = "inspect.md#does-my-input-run"

    module = ""  # the full name of the submodule that was running
    op = ""  # the operator or torch function that raised; "" if other code did
    function = ""  # the function of torch that the program called
    arguments = ""  # the arguments of the operation, with shape, dtype and device
    line = ""  # "file:number": the innermost line outside torch and torchfake
    source = ""  # the text of that line


class InputsError(TorchFakeError, ValueError):
    """Example inputs for a module cannot be made, or options do not fit the inputs.

    ``example_inputs`` supports models of transformers, timm, torchvision and diffusers. For any
    other module, make the inputs yourself; as fakes they take no memory::

        example_inputs(torch.nn.Linear(3, 4))          # InputsError
        with fake_mode():
            inputs = torch.empty(16, 3)
    """

    page = "inspect.md#does-my-input-run"


class TraceError(TorchFakeError, RuntimeError):
    """A module cannot be traced to a graph: most often, it branches on a value.

    The message quotes the tracer, whose exception is the cause. Remove the branch, or use another
    tracer (``symbolic_trace``, ``make_fx``, ``export``).
    """

    page = "tracing.md#when-it-does-not-work"


def printable(text: str, *, keep: str = "") -> str:
    r"""Escape each character of a text that is not printable, except the characters in `keep`.

    An escaped name cannot move the cursor, imitate another line, or fail to be encoded.

    >>> printable("a\x1b[31m\u202e\n")
    'a\\x1b[31m\\u202e\\n'
    """
    if text.isprintable():
        return text
    escape = {c: c.encode("unicode_escape").decode() for c in text if not c.isprintable()}
    return "".join(c if c in keep else escape.get(c, c) for c in text)


def listed(names: Sequence[str], word: str = "or") -> str:
    """``A, B or C``."""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


_LONGEST_NAME = 200  # longer names get no suggestions: the comparison takes quadratic time


def did_you_mean(unknown: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """``; did you mean A, B or C?`` or "": the known names closest to an unknown one, case aside.

    The message has ``shown(name)`` for each of them.

    >>> did_you_mean("Defered_init", ["deferred_init", "fake_mode"])
    '; did you mean deferred_init?'
    """
    if len(unknown) > _LONGEST_NAME:
        return ""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(unknown.lower(), by_lower, n=3, cutoff=0.7)
    words = unknown.lower().split("_")
    close = close or [name for name in by_lower if words[1:] and _has_words(name, words)][:3]
    names = list(dict.fromkeys(shown(by_lower[name]) for name in close))
    return f"; did you mean {listed(names)}?" if names else ""


def _has_words(name: str, words: Sequence[str]) -> bool:
    """Whether each word begins one of a name: those of num_layer do, of num_hidden_layers."""
    own = name.split("_")
    return all(any(each.startswith(word) for each in own) for word in words)

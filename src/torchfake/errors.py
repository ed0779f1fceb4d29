"""Every error torchfake raises on purpose.

Enters: nothing. Leaves: the exception tree. Invariant: each class's docstring is the page a
user needs: what happened, why, and the code that mends it. Errors that eager torch would raise
itself (wrong shapes, two devices in one operation) are not here: they are raised in torch's words.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "DeviceError",
    "MissingExtraError",
    "NotFakeError",
    "RealTensorWriteError",
    "TargetError",
    "TorchFakeError",
    "UnknownValueError",
    "UnsupportedOpError",
]


class TorchFakeError(Exception):
    """The root of the tree: ``except TorchFakeError`` catches all that follows."""


class NotFakeError(TorchFakeError, ValueError):
    """A function that describes fakes was given something that is not one.

    ::

        meta_like(torch.ones(3))             # NotFakeError: a real tensor has no fake metadata

    Check with :func:`torchfake.is_fake` first, or make the twin::

        meta_like(fake_like(torch.ones(3)))
    """


class UnknownValueError(TorchFakeError, ValueError):
    """The program asked for a number that a fake tensor does not hold.

    A fake has shape, strides, dtype and device, but no data. Small tensors computed from plain
    host data (``torch.arange(8)``) keep their values; weights, activations and random
    floats do not, so a branch on them cannot be answered::

        with fake_mode():
            x = torch.randn(8)
            if x.sum() > 0:                  # UnknownValueError
                ...

    Take the branch out of the code being inspected, give it a host value
    (``torch.tensor(1.0)``), or skip that function while inspecting
    (``if not is_fake(x): ...``).
    """


class RealTensorWriteError(TorchFakeError, ValueError):
    """An operation with a fake among its inputs would have written a real tensor.

    The values to write do not exist, so the real tensor would be spoiled::

        real = torch.zeros(3)
        real.add_(fake)                      # RealTensorWriteError

    Write out of place (``real + fake`` is a fake), or write into the fake twin::

        fake_like(real).add_(fake)
    """


class UnsupportedOpError(TorchFakeError, NotImplementedError):
    """No rule says what metadata an operation gives.

    torch has neither a meta kernel nor a decomposition for it. A custom operator gains one with
    ``torch.library.register_fake("mylib::op")``; docs/adding_an_op.md shows how to add a rule to
    torchfake itself.
    """


class DeviceError(TorchFakeError, ValueError):
    """A device was named that fakes cannot report, or a device profile that is not known.

    Fakes live on ``cpu`` and ``cuda``. Profiles are listed by
    :func:`torchfake.profiles`.
    """


class MissingExtraError(TorchFakeError, ImportError):
    """A part of torchfake needs a package that is not installed.

    The message is the one command that installs it, for instance
    ``pip install "torchfake[cli]"``.
    """


class TargetError(TorchFakeError, ValueError):
    """The command line could not turn its TARGET into a model.

    TARGET is ``transformers:ClassName``, the path of a ``config.json``, or
    ``package.module:callable``.
    """


class CacheError(TorchFakeError, AssertionError):
    """A remembered outcome of an operation is not what its kernel gives now.

    Raised only while ``TORCHFAKE_CHECK_CACHE=1`` is set, which runs every operation and compares.
    It is a bug of torchfake, or of a kernel whose results depend on more than its arguments.
    ``TORCHFAKE_CACHE=0`` runs without the cache.
    """

"""Every error torchfake raises on purpose.

Enters: nothing. Leaves: the exception tree. Invariant: each class's docstring is the page a
user needs: what happened, why, and the code that mends it. Errors that eager torch would raise
itself (wrong shapes, two devices in one operation) are not here: they are raised in torch's words.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "ChangedValueError",
    "CheckError",
    "CheckpointError",
    "DeviceError",
    "InputsError",
    "MaterializeError",
    "MissingExtraError",
    "NotDeferredError",
    "NotFakeError",
    "RankMismatchError",
    "RealTensorWriteError",
    "RecordError",
    "ReplayError",
    "TargetError",
    "TorchFakeError",
    "TraceError",
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


class NotDeferredError(TorchFakeError, ValueError):
    """A function for deferred tensors was given something that is not one.

    Tensors made in :func:`torchfake.fake_mode` have no record of how they were made, so they cannot
    become real::

        with fake_mode():
            layer = torch.nn.Linear(3, 4)
        materialize_module(layer)            # NotDeferredError

    Build with :func:`torchfake.deferred_init` instead. Real tensors are never refused: they are
    what they would become.
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


class RecordError(TorchFakeError, ValueError):
    """An operation on a deferred tensor cannot be recorded.

    What is recorded must be there when it is done, later: a number, a dtype, a tensor. An open file
    or a handle of some library is not. Real tensors are kept by reference, and a write to one is
    noticed by its version; inference tensors have none, and large ones are refused::

        with torch.inference_mode():
            table = torch.randn(1 << 20)     # real
        weight.copy_(table)                  # RecordError; table.clone() made outside is taken

    A deferred tensor cannot be pickled either, since its record would be lost: materialize it
    first.
    """


class ReplayError(TorchFakeError, RuntimeError):
    """What was recorded cannot be done for real.

    The message names the operation and the line that recorded it. The kernel failed (no memory is
    left), a real tensor that took part was written since, or values are asked for that never were:
    a deferred tensor was written from a plain fake, as running statistics are in a forward pass on
    fake inputs::

        with fake_mode():
            model(torch.ones(2, 3, 8, 8))    # writes running_mean, in training
        materialize_module(model)            # ReplayError

    Call ``model.eval()`` before such a pass, or run it on a ``copy.deepcopy`` of the model. What
    was materialized before the error stays real, and the rest stays deferred.
    """


class MaterializeError(TorchFakeError, RuntimeError):
    """A deferred tensor cannot become real in place.

    Every reference to the tensor becomes real with it. A graph of autograd that is alive would go
    on to hold the fake, and lose its gradients::

        output = model(inputs)
        materialize_module(model)            # MaterializeError: del output first

    The same goes for the result of a differentiable operation, whose history cannot be made real
    (detach it), and for a device that this machine does not have (pass ``device=``).
    """


class ChangedValueError(TorchFakeError, ValueError):
    """A module cannot be made fake again, for what it holds is not what was recorded.

    ``dematerialize_module`` gives memory back only if the same bits can be had again. A trained
    weight cannot: save it first, or leave it out with ``check_fn``.
    """


class CheckpointError(TorchFakeError, ValueError):
    """A checkpoint cannot be read into a module, or written.

    Of what is read, all that is wrong is said at once, by name: tensors of another shape, and those
    that the module does not have; or that the file is cut short, is no checkpoint, or would run
    code to be read. Nothing has changed then::

        materialize_module(model, checkpoint="model.safetensors")  # CheckpointError
        materialize_module(model, checkpoint="model.safetensors", strict=False)  # what fits

    Of what is written: the directory holds another model, or a tensor is of a kind that safetensors
    files do not have.
    """


class RankMismatchError(TorchFakeError, RuntimeError):
    """The ranks of a mesh have not recorded the same program.

    Each rank makes its shards of a sharded module from its own record, so all must have built the
    same model from the same random state. The message names the ranks that differ from the most,
    and the first parameter that does; all ranks raise it, and no weight has been made::

        torch.manual_seed(dist.get_rank())   # the same number everywhere instead
        model = deferred_init(Model, config)
        fully_shard(model, mesh=mesh)
        materialize_module(model)            # RankMismatchError
    """


class CheckError(TorchFakeError, ValueError):
    """A module does not run on the inputs it was given.

    The message names the module that was running, the operation, its arguments with shape, dtype
    and device, and the line; they are its attributes too. The cause is the error itself::

        check(model, torch.ones(2, 5))       # CheckError: in layers.3.mlp: linear(...)

    It is the error of a real run: mend the inputs, or the module.
    """

    module = ""  # the full name of the one that was running
    op = ""  # the operator, else the function of torch, that raised; "" if none did
    function = ""  # the function of torch that the program called
    arguments = ""  # of the operation, with shape, dtype and device
    line = ""  # "file:number", the innermost that is neither torch's nor ours
    source = ""  # what that line says


class InputsError(TorchFakeError, ValueError):
    """Inputs for a module cannot be made up, or do not fit the question.

    ``example_inputs`` knows the models of transformers. For any other module, make the inputs; as
    fakes they cost nothing::

        example_inputs(torch.nn.Linear(3, 4))          # InputsError
        with fake_mode():
            inputs = torch.empty(16, 3)
    """


class TraceError(TorchFakeError, RuntimeError):
    """A module cannot be traced to a graph.

    The message has what the tracer said, of which the cause is all. A branch on a value is what
    tracers refuse most: take it out, or trace with another of ``symbolic_trace``, ``make_fx`` and
    ``export``.
    """

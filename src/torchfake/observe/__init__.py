"""Observation of a run on fakes: the only interface between the core of torchfake and its tools.

``inspect``, ``distributed`` and the command line use this package and the public names of
torchfake, and so can your own profiler. A tool subclasses :class:`Observer`, and is notified of
operators, memory, streams and modules in ``with observing(tool, model):`` inside a mode;
docs/observing.md has a profiler of twenty lines.

Observing a run does not change it: operators, results, gradients and random numbers are the same,
and nothing is kept alive. Outside of :func:`observing` there are no observers.

The names in ``__all__`` are public. The other imports are what torchfake's own tools need of the
core, and may change.

Files, in reading order:

    observer  the base class of observers: notifications and queries
    dispatch  the context in which an observer is notified
    modules   which module is running, forward or backward
    facts     facts of a fake and of its storage; the mode for a program copied onto fakes
"""

from torchfake._core.devices import MAX_DEVICES as MAX_DEVICES
from torchfake._core.metadata import Metadata as Metadata
from torchfake._core.metadata import is_dense as is_dense
from torchfake._core.schemas import OpTraits as OpTraits
from torchfake._core.schemas import traits_of as traits_of
from torchfake._core.source_location import RawLocation as RawLocation
from torchfake._core.source_location import SourceLocation as SourceLocation
from torchfake._core.source_location import is_library_code as is_library_code
from torchfake._core.storage import Storage as Storage
from torchfake._operators.handlers.collectives import RING_SHARES as RING_SHARES
from torchfake._operators.handlers.collectives import Message as Message
from torchfake._operators.handlers.collectives import message_of as message_of
from torchfake._patches.patch import Patch as Patch
from torchfake._patches.patch import Patched as Patched
from torchfake._patches.wrapper_devices import patches_of_dtensors as patches_of_dtensors
from torchfake._tensor.classes import FAKE_TYPES as FAKE_TYPES
from torchfake._tensor.copies import FakeCopies as FakeCopies
from torchfake._tensor.copies import held_tensors as held_tensors
from torchfake._tensor.copies import is_or_holds_fake as is_or_holds_fake
from torchfake._tensor.copies import is_replicated as is_replicated
from torchfake._tensor.copies import replace_replicas as replace_replicas
from torchfake._tensor.copies import tensors_held_by as tensors_held_by
from torchfake._tensor.fake_tensor import FakeTensor as FakeTensor
from torchfake._tensor.known_values import keeps_value as keeps_value
from torchfake._torch.autograd import running_sequence_number as running_sequence_number
from torchfake._torch.contexts import Restoring as Restoring
from torchfake._torch.contexts import interrupt_behind as interrupt_behind
from torchfake._torch.dispatcher import is_called_by_engine as is_called_by_engine
from torchfake._torch.subclass import leaf_tensors as leaf_tensors
from torchfake._unknown_values.answer_log import Answer as Answer
from torchfake._unknown_values.answerers import Answerer as Answerer
from torchfake._unknown_values.answerers import AnswerFunction as AnswerFunction
from torchfake._unknown_values.question import Question as Question
from torchfake.observe.dispatch import observers as observers
from torchfake.observe.dispatch import observing as observing
from torchfake.observe.facts import assume_value as assume_value
from torchfake.observe.facts import held_bytes as held_bytes
from torchfake.observe.facts import known_value as known_value
from torchfake.observe.facts import metadata_of as metadata_of
from torchfake.observe.facts import mode_of_copies as mode_of_copies
from torchfake.observe.facts import no_mode as no_mode
from torchfake.observe.facts import set_known_value as set_known_value
from torchfake.observe.facts import storage_of as storage_of
from torchfake.observe.modules import RunningModules as RunningModules
from torchfake.observe.observer import Allocation as Allocation
from torchfake.observe.observer import Observer as Observer

__all__ = [
    "Allocation",
    "Observer",
    "RunningModules",
    "known_value",
    "metadata_of",
    "observers",
    "observing",
    "storage_of",
]

"""Run on several ranks: sharded modules to files and from files.

``save FOLDER``, on four ranks, writes checkpoints of all kinds; ``load FOLDER``, on any number of
ranks, reads them; ``kill FOLDER RANK`` kills that rank in the middle of a save. Each rank asserts
bits, and the first prints a line for each case.
"""

import errno
import os
import re
import signal
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests._sharding import models
from torchfake import deferred_init, is_deferred, materialize_module
from torchfake import save_materialized as save_module
from torchfake._files import load as _load
from torchfake._files.disk import INCOMPLETE
from torchfake._files.lock import DirectoryLock
from torchfake._files.safetensors import Writer
from torchfake._replay import replay
from torchfake.errors import CheckpointError, RankMismatchError

FILE_BYTES = 40_000
TIMEOUT = timedelta(seconds=60)


def both(module, mesh):
    models.tensor_parallel(module, mesh["tp"])
    return models.fsdp(module, mesh["dp"])


def columns(module, mesh):
    return models.fsdp(module, mesh, shard_placement_fn=lambda p: Shard(p.dim() - 1))


def by_hand(module, mesh):
    """Two axes shard one dimension, in order; tensors that are no matrices are not sharded."""
    for submodule in module.modules():
        for key, parameter in list(submodule.named_parameters(recurse=False)):
            if parameter.dim() == 2:
                new = distribute_tensor(parameter, mesh, [Shard(0), Shard(0)])
                submodule.register_parameter(key, torch.nn.Parameter(new))
    return module


def uneven():
    """Sizes that no axis divides; those that are sharded by columns have to be even."""
    return models.Net(width=38, inner=54, layers=1, words=27)


def tied():
    net = models.odd()
    net.head.weight = net.embed.weight
    return net.to(torch.bfloat16)


def large():
    """With a tensor of 16 MB, so that ranks read pages of their own."""
    net = models.odd()
    net.head = torch.nn.Linear(1024, 4096, bias=False)
    return net


def ways(world):
    """By name: what builds a model, the shape of the mesh, how it is sharded."""
    found = {
        "fsdp": (models.Net, (world,), models.fsdp),
        "odd": (models.odd, (world,), models.fsdp),
        "columns": (models.Net, (world,), columns),
        "tied": (tied, (world,), models.fsdp),
    }
    if world == 4:
        found["both"] = (models.Net, (2, 2), both)
        found["both, uneven"] = (uneven, (2, 2), both)
        found["hsdp"] = (models.odd, (2, 2), models.fsdp)
        found["by hand"] = (models.odd, (2, 2), by_hand)
    return found


def some_ways(world):
    """Those that differ most."""
    return [name for name in ("odd", "columns", "both, uneven", "by hand") if name in ways(world)]


def shard(name, module):
    _, shape, how = ways(dist.get_world_size())[name]
    return how(module, init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[: len(shape)]))


def deferred(name, seed=0):
    torch.manual_seed(seed)
    return shard(name, deferred_init(ways(4)[name][0]))


def eager(name, seed=0):
    torch.manual_seed(seed)
    return ways(4)[name][0]()


def assert_is(module, expected, case):
    """Check all values of a module, gathered from the shards."""
    assert not is_deferred(module), case
    state = module.state_dict()
    assert list(state) == list(expected), case
    for key, tensor in state.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(whole, expected[key]), (case, key)


def done(case):
    if dist.get_rank() == 0:
        print(case, flush=True)


# To files.


def save(folder):
    for name in ways(4):
        module = deferred(name)
        save_module(module, folder / f"{name}.deferred", max_shard_size=FILE_BYTES)
        assert all(map(is_deferred, module.parameters()))
        materialize_module(module)
        assert_is(module, eager(name).state_dict(), name)
        save_module(module, folder / f"{name}.real", max_shard_size=FILE_BYTES)
        save_distributed(name, module, folder / f"{name}.dcp")
        done(f"saved {name}")
    if dist.get_rank() == 0:
        torch.save(eager("odd").state_dict(), folder / "odd.bin")
    module = models.fsdp(deferred_init(large), init_device_mesh("cpu", (4,)))
    save_module(module, folder / "large")
    dcp.save(materialize_module(module).state_dict(), checkpoint_id=folder / "large.dcp")
    with pytest.raises(RankMismatchError, match="rank 3 recorded different operations than rank 0"):
        save_module(deferred("odd", seed=dist.get_rank() // 3), folder / "other")
    assert not (folder / "other").exists()
    unwritable(folder / "unwritable", folder / "odd.deferred")


def unwritable(folder, expected):
    """What keeps one rank from writing is an error on all; a later call writes the same files."""
    folder.mkdir(exist_ok=True)
    lock = DirectoryLock(folder)
    if dist.get_rank() == 0:
        lock.acquire()
    dist.barrier()
    with pytest.raises(CheckpointError, match="is being written to by process"):
        save_module(deferred("odd"), folder, max_shard_size=FILE_BYTES)
    dist.barrier()
    lock.release()
    for rank in range(3):
        for call in ("fsync", "pwrite", "ftruncate", "replace"):
            if rank and call in ("ftruncate", "replace"):
                continue  # of the first rank alone
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with mock.patch.object(os, call, side_effect=full if dist.get_rank() == rank else None,
                                   wraps=getattr(os, call)), pytest.raises(
                CheckpointError, match=r"cannot be written: No space left .* needs [0-9,]+ bytes"
            ):  # fmt: skip
                save_module(deferred("odd"), folder, max_shard_size=FILE_BYTES)
            dist.barrier()
            assert not list(folder.glob("*.index.json"))
            assert not list(folder.glob(f"*{INCOMPLETE}"))
            dist.barrier()
    save_module(deferred("odd"), folder, max_shard_size=FILE_BYTES)
    files = [{p.name: p.read_bytes() for p in place.iterdir()} for place in (folder, expected)]
    assert files[0] == files[1]
    done("unwritable")


def save_distributed(name, module, folder):
    """With torch's own functions, as they are usually called."""
    if name == "odd":
        optimizer = {"state": {"head.weight": {"exp_avg": torch.ones(3)}}, "lr": 0.1}
        dcp.save({"model": module.state_dict(), "optimizer": optimizer}, checkpoint_id=folder)
    elif name == "columns":
        dcp.save(get_model_state_dict(module), checkpoint_id=folder)
    else:
        dcp.save(module.state_dict(), checkpoint_id=folder)


# From files.


def load(folder):
    world = dist.get_world_size()
    for name, (build, _, _) in ways(world).items():
        expected = eager(name).state_dict()
        for other in ways(4):
            if ways(4)[other][0] is build:
                for kind in ("dcp", "deferred") if other == name else ("dcp",):
                    source = folder / f"{other}.{kind}"
                    module = deferred(name, seed=1)
                    with nothing_drawn():
                        materialize_module(module, checkpoint=source)
                    assert_is(module, expected, (name, source))
        done(f"loaded {name}")
    for case in (files, state_dicts, missing, casts, overwritten, refused, bytes_read):
        case(folder)
        done(case.__name__)


def nothing_drawn():
    """Context in which it is checked that no replay draws random values."""
    original = replay.dependencies

    def dependencies(*args, **kwargs):
        ops = original(*args, **kwargs)
        assert not [op for op in ops if op.draw is not None]
        return ops

    return mock.patch.object(replay, "dependencies", dependencies)


def files(folder):
    expected = eager("odd").state_dict()
    for source in (folder / "odd.bin", folder / "odd.real" / "model.safetensors"):
        assert_is(materialize_module(deferred("odd", 1), checkpoint=source), expected, source)


def state_dicts(folder):
    """Full tensors, tensors sharded in the same way, and in another."""
    for name in some_ways(dist.get_world_size()):
        whole = eager(name, seed=5)
        expected = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
        alike = shard(name, whole).state_dict()
        replicated = {
            key: distribute_tensor(
                expected[key], tensor.device_mesh, [Replicate()] * tensor.device_mesh.ndim
            )
            for key, tensor in alike.items()
            if isinstance(tensor, DTensor)
        }
        for state in (expected, alike, {**expected, **replicated}):
            module = materialize_module(deferred(name), checkpoint=state)
            assert_is(module, expected, name)


def missing(folder):
    """Tensors that the checkpoint lacks are replayed."""
    for name in some_ways(dist.get_world_size()):
        expected, other = eager(name).state_dict(), eager(name, seed=5).state_dict()
        left = {key: other.pop(key) for key in [*other] if key.endswith(("up.weight", "norm.bias"))}
        assert left
        expected.update(other)
        place = folder / f"{name}.part{dist.get_world_size()}"
        dcp.save(shard_all(other), checkpoint_id=place)
        for source in (other, place):
            assert_is(materialize_module(deferred(name), checkpoint=source), expected, name)


def shard_all(state):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {key: distribute_tensor(tensor, mesh, [Shard(0)]) for key, tensor in state.items()}


def casts(folder):
    expected = {key: t.to(torch.bfloat16) for key, t in eager("odd").state_dict().items()}
    for kind in ("dcp", "real"):
        module = deferred("odd", 1)
        materialize_module(module, dtype=torch.bfloat16, checkpoint=folder / f"odd.{kind}")
        assert_is(module, expected, kind)


def overwritten(folder):
    """Real tensors get the values, too."""
    for kind in ("dcp", "deferred"):
        module = materialize_module(deferred("odd", 1))
        materialize_module(module, checkpoint=folder / f"odd.{kind}")
        assert_is(module, eager("odd").state_dict(), kind)


def refused(folder):
    """Problems are reported by name, on all ranks, before anything has changed."""
    mine, rank = folder / "odd.dcp", dist.get_rank()
    reshaped = {**eager("odd").state_dict(), "head.weight": torch.ones(3, 3)}
    cases = {
        r"head.weight is \[29, 37\] in the checkpoint and \[112, 48\] in the module": mine,
        r"does not have layers.0.down.bias.* of the checkpoint": {
            **eager("fsdp").state_dict(), "layers.0.down.bias.x": torch.ones(1)
        },
        r"head.weight is \[3, 3\] in the checkpoint": reshaped,
        r"nowhere', which does not exist": mine if rank == 0 else folder / "nowhere",
    }  # fmt: skip
    for text, source in cases.items():
        name = "odd" if "nowhere" in text else "fsdp"
        module = deferred(name)
        with pytest.raises(CheckpointError, match=text):
            materialize_module(module, checkpoint=source)
        assert all(map(is_deferred, module.parameters()))
        assert_is(materialize_module(module), eager(name).state_dict(), text)
    with pytest.warns(UserWarning, match=r"head.weight is \[3, 3\] in the checkpoint"):
        module = materialize_module(deferred("odd"), checkpoint=reshaped, strict=False)
    assert_is(module, eager("odd").state_dict(), "strict=False")


def bytes_read(folder):
    """No rank reads the shards of others, except for the pages that they share."""
    world = dist.get_world_size()
    share = 4 * 1024 * 4096 / world

    def fresh():
        return models.fsdp(deferred_init(large), init_device_mesh("cpu", (world,)))

    opened = []
    original = _load.Entry

    def entry(shape, read, *args, **kwargs):
        if len(shape) == 2 and shape[0] == 4096:
            opened.append(read())  # keeps the file mapped
        return original(shape, read, *args, **kwargs)

    with mock.patch.object(_load, "Entry", entry):
        materialize_module(fresh(), checkpoint=folder / "large")
    assert len(opened) == 1
    # the kernel maps up to a huge page more on both sides
    assert 0.9 * share < bytes_mapped("large/model.safetensors") < share + 2**21
    module = fresh()
    before = bytes_of_files()
    materialize_module(module, checkpoint=folder / "large.dcp")
    assert 0.9 * share < bytes_of_files() - before < share + 2**21


def bytes_mapped(name):
    """The bytes of mapped files of that name that this process has read."""
    total, is_its = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_its = name in line
        elif is_its and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def bytes_of_files():
    return int(Path("/proc/self/io").read_text().split()[1])


# Interrupted.


def kill(folder, rank):
    """The other ranks get an error."""
    original, written = Writer.write_bytes, []

    def write_bytes(self, *args):
        written.append(args)
        if len(written) == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, *args)

    if dist.get_rank() == int(rank):
        Writer.write_bytes = write_bytes
    try:
        save_module(deferred("fsdp"), folder, max_shard_size=FILE_BYTES)
    except Exception as error:
        print(type(error).__name__)


def main(cases, folder, *rest):
    for case in cases.split("+"):
        {"save": save, "load": load, "kill": kill}[case](Path(folder), *rest)

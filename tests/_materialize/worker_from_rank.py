"""Run on four ranks: modules that get the values of one rank, which alone has them.

Each case prints its name on every rank, if what it asserts holds there; one that is refused prints
the name, the class of the error and its message.
"""

import ctypes
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests._sharding import models
from tests._sharding.worker_weights import check, sharded, ways
from torchfake import deferred_init, is_deferred, materialize_module
from torchfake._sharding import one_source
from torchfake.errors import TorchFakeError

TIMEOUT = timedelta(seconds=20)
SMALL_BATCH = 4096


def seeded(build, make, seed=None):
    torch.manual_seed(dist.get_rank() + 1 if seed is None else seed)
    return make(build)


def real(build):
    return build()


def eager_values(build, seed):
    module = seeded(build, real, seed)
    return {name: tensor.detach() for name, tensor in all_tensors(module).items()}


def all_tensors(module):
    return dict(
        [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
    )


def assert_equal(module, expected):
    assert not is_deferred(module)
    own = all_tensors(module)
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert whole.dtype == expected[name].dtype, name
        assert torch.equal(whole, expected[name]), name


class Tied(nn.Module):
    """With tied weights, a buffer that is not saved, integers, and tensors in plain attributes."""

    def __init__(self, is_tied=True):
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.head = nn.Linear(6, 13, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("table", torch.rand(5, 3).t(), persistent=False)
        self.register_buffer("phase", torch.rand(3, dtype=torch.complex64))
        self.register_buffer("mask", torch.rand(7) > 0.5)
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("repeated", torch.rand(1, 3).expand(2, 3))
        self.register_buffer("part", torch.rand(6, 2)[1:3])
        self.scale = torch.rand(4)
        self.tables = [torch.rand(2), {"x": torch.rand(3)}]
        self.normed = torch.nn.utils.weight_norm(nn.Linear(4, 3))

    def held(self):
        return [self.scale, self.tables[0], self.tables[1]["x"], self.normed.weight]


def replicated(mesh):
    """Real on one rank and deferred on the others; or deferred on all, from other seeds."""
    for source in (0, 2):
        for on_source in (real, deferred_init):
            expected = eager_values(Tied, source + 1)
            held = seeded(Tied, real, source + 1).held()
            make = on_source if dist.get_rank() == source else deferred_init
            module = seeded(Tied, make)
            weight, state = module.embed.weight, torch.get_rng_state()
            assert materialize_module(module, from_rank=source) is module
            assert_equal(module, expected)
            assert torch.equal(torch.get_rng_state(), state)
            assert module.embed.weight is weight is module.head.weight
            assert isinstance(weight, nn.Parameter)
            assert [weight.is_leaf, weight.requires_grad] == [True, True]
            assert all(map(torch.equal, module.held(), held))
            assert module.table.stride() == (1, 3)
            assert module.repeated.stride() == (0, 1)


def every_way(mesh):
    """Each way to shard, of a module that only the source has recorded from that seed."""
    for name, (model, shape, shard, _) in ways(dist.get_world_size()).items():
        eager = seeded(model, real, 1)
        module = seeded(model, deferred_init)
        axes = ("dp", "tp")[: len(shape)]
        sharded(module, init_device_mesh("cpu", shape, mesh_dim_names=axes), shard)
        state = torch.get_rng_state()
        materialize_module(module, from_rank=0)
        check(name, module, eager, state)
        print(f"way: {name}", flush=True)


def tied_and_sharded(mesh):
    module = fully_shard(seeded(lambda: models.Net(), deferred_init), mesh=mesh)
    materialize_module(module, from_rank=0)
    assert_equal(module, eager_values(models.Net, 1))

    def tied():
        net = models.Net()
        net.head.weight = net.embed.weight
        return net

    module = fully_shard(seeded(tied, deferred_init), mesh=mesh)
    materialize_module(module, from_rank=0)
    assert module.head.weight is module.embed.weight
    assert_equal(module, eager_values(tied, 1))


def from_checkpoints(mesh):
    """A state dict, which the source alone has, or a file, which it alone opens."""
    values = eager_values(models.odd, 7)
    is_source = dist.get_rank() == 1
    module = models.fsdp(seeded(models.odd, deferred_init), mesh)
    materialize_module(module, from_rank=1, checkpoint=values if is_source else None)
    assert_equal(module, values)
    path = f"/tmp/torchfake-{os.getpid()}.pt"
    if is_source:
        torch.save(values, path)
    module = models.tensor_parallel(seeded(models.odd, deferred_init), mesh)
    materialize_module(module, from_rank=1, checkpoint=path if is_source else "/not/there")
    assert_equal(module, values)
    if is_source:
        os.unlink(path)
    module = seeded(models.odd, real)  # what is real gets the checkpoint's values, as without ranks
    materialize_module(module, from_rank=1, checkpoint=values if is_source else None)
    assert_equal(module, values)


def loaded_on_the_source(mesh):
    """Real values that the source has copied into its deferred module."""
    values = eager_values(models.Net, 7)
    module = seeded(models.Net, deferred_init)
    if dist.get_rank() == 0:
        module.load_state_dict(values)
    models.fsdp(module, mesh)
    materialize_module(module, from_rank=0)
    assert_equal(module, values)


def parts_and_dtypes(mesh):
    expected = eager_values(models.Net, 1)
    module = models.fsdp(seeded(models.Net, deferred_init), mesh)
    materialize_module(module, buffers_only=True, from_rank=0)
    assert torch.equal(module.scale, expected["scale"])
    assert is_deferred(module.embed)
    materialize_module(module, check_fn=lambda m: isinstance(m, nn.LayerNorm), from_rank=0)
    assert [is_deferred(module.norm), is_deferred(module.head)] == [False, True]
    materialize_module(module, from_rank=0)
    assert_equal(module, expected)
    half = {name: tensor.bfloat16() for name, tensor in expected.items()}
    module = models.fsdp(seeded(models.Net, deferred_init), mesh)
    materialize_module(module, from_rank=0, dtype=torch.bfloat16)
    assert_equal(module, half)
    module = seeded(lambda: models.Net().bfloat16(), real, 1)
    if dist.get_rank():
        module = seeded(models.Net, deferred_init)
    materialize_module(module, from_rank=0, dtype=torch.bfloat16)
    assert_equal(module, half)


def groups(mesh):
    """A process group, and meshes: of one axis, of a part of the ranks, of all with two axes."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    first = dist.get_rank() // 2 * 2
    for group in (grid["dp"], grid["dp"].get_group()):
        module = models.fsdp(seeded(models.Net, deferred_init), grid["dp"])
        materialize_module(module, from_rank=first, group=group)
        assert_equal(module, eager_values(models.Net, first + 1))
    for group in (grid, mesh, None):
        module = models.fsdp(seeded(models.Net, deferred_init), grid["dp"])  # twice the same
        materialize_module(module, from_rank=3, group=group)
        assert_equal(module, eager_values(models.Net, 4))
    other = 2 - first
    for arguments in ({"from_rank": 4}, {"from_rank": other, "group": grid["dp"]}, {"group": grid}):
        try:
            materialize_module(module, **arguments)
        except ValueError:
            continue
        raise AssertionError(arguments)


def memory(mesh):
    """The source holds its shards and one tensor, the others their shards."""

    def large():
        return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))

    if not os.access("/proc/self/clear_refs", os.W_OK):
        return
    mmap_threshold = -3
    ctypes.CDLL(None).mallopt(mmap_threshold, 1024 * 1024)  # what is freed is given back
    one_source.BATCH_BYTES, one = 1, 16 * 1024 * 1024
    module = fully_shard(seeded(large, deferred_init), mesh=mesh)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    materialize_module(module, from_rank=0, threads=1)
    peak = resident("VmHWM") - before
    allowed = 2 * one + (one if dist.get_rank() == 0 else 0) + one // 2
    print(f"memory: {peak / one} of {allowed / one}", flush=True)
    assert peak < allowed, (peak / one, allowed / one)
    one_source.BATCH_BYTES = SMALL_BATCH


def resident(what):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(what))
    return int(line.split()[1]) * 1024


# What is refused, on all ranks, with nothing changed.


def refused(name, module, **arguments):
    deferred = {n for n, tensor in all_tensors(module).items() if is_deferred(tensor)}
    try:
        materialize_module(module, **{"from_rank": 0, **arguments})
    except TorchFakeError as error:
        print(f"refused: {name}: {type(error).__name__}: {error}", flush=True)
        now = {n for n, tensor in all_tensors(module).items() if is_deferred(tensor)}
        assert now == deferred, name
        return
    raise AssertionError(name)


def mismatches(mesh):
    rank = dist.get_rank()

    def differs_on(which, build):
        return lambda: build(rank == which)

    refused("shape", seeded(differs_on(2, lambda d: nn.Linear(4, 5 if d else 6)), deferred_init))
    double = differs_on(1, lambda d: nn.Linear(4, 5).double() if d else nn.Linear(4, 5))
    refused("dtype", seeded(double, deferred_init if rank else real))
    refused("missing", seeded(differs_on(3, lambda d: nn.Linear(4, 5, bias=not d)), deferred_init))
    refused("more", seeded(differs_on(0, lambda d: nn.Linear(4, 5, bias=not d)), deferred_init))
    refused("ties", seeded(differs_on(1, lambda d: Tied(is_tied=not d)), deferred_init))
    cast = seeded(lambda: nn.Linear(4, 5), deferred_init if rank else real)
    refused("cast", cast, dtype=torch.bfloat16)
    gone = fully_shard(seeded(lambda: nn.Linear(4, 8), deferred_init if rank else real), mesh=mesh)
    refused("gone", gone)
    try:
        materialize_module(gone)
    except TorchFakeError as error:
        print(f"refused: without from_rank: {type(error).__name__}: {error}", flush=True)
    changed = fully_shard(seeded(lambda: nn.Linear(4, 8), deferred_init), mesh=mesh)
    if rank == 0:
        with torch.no_grad():
            changed.weight.mul_(2)
    refused("changed", changed)
    few = fully_shard(seeded(lambda: nn.Linear(4, 2), deferred_init), mesh=mesh)
    refused("empty", few, from_rank=3)
    refused("source", seeded(lambda: nn.Linear(4, 8), deferred_init), from_rank=rank // 2)
    no_file = "/not/there" if rank == 0 else None
    refused("file", seeded(lambda: nn.Linear(4, 8), deferred_init), checkpoint=no_file)
    held = seeded(lambda: nn.Linear(4, 8), deferred_init)
    graph = held(torch.ones(4)) if rank == 2 else None
    refused("graph", held)
    del graph
    materialize_module(held, from_rank=0)
    assert_equal(held, eager_values(lambda: nn.Linear(4, 8), 1))


failing = {"now": False}


@torch.library.custom_op("torchfake_tests::may_fail", mutates_args=())
def may_fail(x: torch.Tensor) -> torch.Tensor:
    if failing["now"]:
        raise ValueError("no memory")
    return x + 1


@may_fail.register_fake
def _(x):
    return torch.empty_like(x)


class MayFail(nn.Module):
    """Whose last tensor may be impossible to compute."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.last = nn.ParameterList([may_fail(torch.rand(64, 64))])


def failures(mesh):
    """On the source, after it has sent the first tensor: all stop, and a second call goes on."""
    expected = eager_values(MayFail, 1)
    for shard in (lambda module: module, lambda module: fully_shard(module, mesh=mesh)):
        module = shard(seeded(MayFail, deferred_init))
        failing["now"] = True
        try:
            materialize_module(module, from_rank=0)
        except TorchFakeError as error:
            print(f"failed: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        failing["now"] = False
        assert [is_deferred(module.first), is_deferred(module.last)] == [False, True]
        materialize_module(module, from_rank=0)
        assert_equal(module, expected)


def dies(mesh):
    module = models.fsdp(seeded(models.Net, deferred_init), mesh)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        materialize_module(module, from_rank=0)
    except Exception as error:
        print(f"dies: {type(error).__name__}", flush=True)


def main(*names):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    one_source.BATCH_BYTES = SMALL_BATCH
    for name in names:
        globals()[name](mesh)
        print(name, flush=True)

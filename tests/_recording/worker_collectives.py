"""Run on two ranks, which have recorded something else each: what a broadcast of it gives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from torchfake import deferred_init, is_deferred, materialize_module, materialize_tensor
from torchfake.errors import RankMismatchError, RecordError


def build(seed):
    torch.manual_seed(seed)
    return nn.Linear(6, 4)


def deferred(seed):
    return deferred_init(build, seed)


def from_first(module):
    """Whether a module has the values of the first rank, once it is materialized."""
    expected = build(0).state_dict()
    materialize_module(module)
    return all(torch.equal(tensor, expected[name]) for name, tensor in module.named_parameters())


def of_parameters(rank):
    module = deferred(rank)
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
    return from_first(module)


def in_the_background(rank):
    module = deferred(rank)
    works = [dist.broadcast(p.detach(), src=0, async_op=True) for p in module.parameters()]
    for work in works:
        work.wait()
    return from_first(module)


def coalesced(rank):
    """As FSDP1 does with sync_module_states, and DDP with buffers."""
    module = deferred(rank)
    tensors = [parameter.detach() for parameter in module.parameters()]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 1 << 20, 0)
    return from_first(module)


def in_a_constructor(rank):
    def construct():
        module = build(rank)
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
        return module

    return from_first(deferred_init(construct))


def then_written(rank):
    """What is recorded after the broadcast is done to the values of the first rank."""
    module = deferred(rank)
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
        parameter.data.mul_(2)
    materialize_module(module)
    return torch.equal(module.weight, build(0).weight * 2)


def on_the_first_only(rank):
    """The others receive into real memory."""
    weight = deferred(0).weight.detach() if rank == 0 else torch.empty(4, 6)
    dist.broadcast(weight, src=0)
    shard = distribute_tensor(weight, init_device_mesh("cpu", (2,)), [Shard(0)])
    return torch.equal(shard.to_local(), build(0).weight[2 * rank : 2 * rank + 2])


def into_deferred_on_others(rank):
    weight = build(0).weight.detach() if rank == 0 else deferred(1).weight.detach()
    dist.broadcast(weight, src=0)
    return torch.equal(materialize_tensor(weight), build(0).weight)


def sharding_sends_nothing(rank):
    mesh = init_device_mesh("cpu", (2,))
    module = deferred(0)
    shards = [distribute_tensor(module.weight, mesh, [p]) for p in (Shard(0), Replicate())]
    return all(map(is_deferred, [*shards, module]))


def sharding_of_something_else_is_found(rank):
    weight = distribute_tensor(deferred(rank).weight, init_device_mesh("cpu", (2,)), [Replicate()])
    try:
        materialize_tensor(weight)
    except RankMismatchError:
        return True
    return False


def others_are_refused(rank):
    tensor = deferred(0).weight.detach()
    for collective in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.all_gather([tensor, tensor.clone()], tensor),
        lambda: dist.reduce(tensor, 0),
        lambda: dist.scatter(tensor, None if rank else [tensor, tensor], src=0),
    )[: 3 + rank]:  # what the first rank scatters is at hand there
        try:
            collective()
        except RecordError as error:
            if "materialize_module" not in str(error):
                return False
        else:
            return False
    return True


CASES = (
    of_parameters, in_the_background, coalesced, in_a_constructor, then_written, on_the_first_only,
    into_deferred_on_others, sharding_sends_nothing,
    sharding_of_something_else_is_found, others_are_refused,
)  # fmt: skip


def main():
    for case in CASES:
        assert case(dist.get_rank()), case.__name__
        print(case.__name__, flush=True)

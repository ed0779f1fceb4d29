"""torch.distributed: what torchfake reads of it and replaces in it, without importing it.

Input: modules and tensors that may be sharded. Output: their shards, meshes, schedules and buckets;
replacements in torch's classes. Invariant: a program that does not import torch.distributed does
not import it by asking here.

Its files, in reading order:

    dtensors  DTensor, FSDP2, device meshes, process groups
    source_group  a process group in which one rank has values for the others
    training  pipeline schedules, the buckets of DDP, ZeroRedundancyOptimizer
    patches   the device of a DTensor of a fake; a check before DDP
"""

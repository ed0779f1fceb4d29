"""Deferred tensors materialized in place, and deferred again.

Input: a module of deferred tensors, and what the user asked for. Output: the same module, real.
Invariant: until everything has been checked nothing changes; after that each tensor is either still
deferred or wholly real.

Files, in reading order:

    pipeline            the steps in order: check, read, compare ranks, prepare, replay, install
    collect             one walk over a module: the tensors to be materialized
    reachable           the fakes that are reached from an attribute
    checks              tensors that cannot be materialized in place, refused by name
    prepare             before the replay: releases histories, records copies of shards and casts
    from_rank           values that one rank sends to the others
    replay_and_install  the replay; fakes are exchanged, storage by storage
    progress            the progress bar of a replay, or of files that are written
    counterparts        the real tensor of a fake: base, memory and version counter
    install             one fake exchanged with its real tensor
    wrappers            DTensors and other wrappers, updated from their inner tensors
    dematerialize       real tensors made deferred again
"""

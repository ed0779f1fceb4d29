"""Deferred tensors materialized in place, and deferred again.

Input: a module of deferred tensors, and what the user asked for. Output: the same module, real.
Invariant: until everything has been checked nothing changes; after that each tensor is either still
deferred or wholly real.

Files, in reading order:

    collect        one walk over a module: what is to be materialized
    pipeline       the steps in order: check, read, compare ranks, prepare, replay, install
    checks         what cannot be materialized in place, refused by name
    prepare        histories released, memory for shards, casts: recorded before the replay
    materialize    the replay, storage by storage
    progress       the progress bar of a replay, or of files that are written
    counterparts   the real tensor of a fake, and what it shares with others
    install        one fake exchanged with its real tensor
    wrappers       DTensors and others, which follow what is inside
    dematerialize  real tensors made deferred again
"""

"""Replay of recorded operations: deferred contents are materialized as real storages.

Input: contents that are requested. Output: real storages with the bits of eager construction.
Invariant: operations and generators that exist are not changed; memory in addition to the results
is bounded; any number of threads gives the same bits.

The pipeline: the operations that the contents depend on are restricted to the elements that are
demanded, fused into groups that can be computed tile by tile, and run by threads as their
dependencies allow. Files in reading order:

    first_use        the entry for files that every program imports: imports the rest when called
    replay           the entry: requests contents, delivers storages; small replays run sequentially
    demand_analysis  which elements of each cell have to be computed
    slicing          operations rewritten to the demanded elements
    tiling           which operations can be computed tile by tile
    tile_kernels     how each operator is computed on a tile, and whether the bits are the same
    task_graph       tasks: fused groups and single operations, with their dependencies
    work_queue       the order: which task is next, within a limit of memory
    workers          the threads that run them
    tile_loop        a range of a fused group, computed tile by tile
    execute          a single operation, executed on real tensors
"""

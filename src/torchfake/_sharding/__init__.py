"""Tensors that are sharded over ranks: what a rank has of them, and whether ranks agree.

Input: DTensors of deferred shards, or of real ones. Output: the slices of the full tensor that this
rank has, what a deferred shard was sliced from, and errors that all ranks raise together.
Invariant: nothing is changed here, and ranks exchange digests and messages, and values only
where they are asked to (``row_exchange``).

Files, in reading order:

    local_tensors     the deferred tensors of this rank: plain ones, and the shards of DTensors
    local_slices      which elements of the full tensor a shard has
    provenance        what a deferred shard was sliced from
    rank_agreement    whether all ranks have recorded the same
    row_exchange      columns, made of rows that ranks draw in turn and exchange
    row_packing       the rows that a rank draws, in the order in which they are sent
    exchange_batches  these exchanges batch by batch, errors told to the others
    shared_errors     an error on one rank, raised on all of them
"""

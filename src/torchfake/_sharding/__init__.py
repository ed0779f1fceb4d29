"""Tensors that are sharded over ranks: a rank's shards of them, and agreement between ranks.

Input: DTensors of deferred or real shards. Output: the slices of the full tensor that this rank
has, the storage that a deferred shard was sliced from, and errors that all ranks raise together.
Invariant: ranks exchange digests and messages; values only in ``row_exchange``, which the user
requests.

Files, in reading order:

    local_tensors     the deferred tensors of this rank; refuses those that were never recorded
    local_slices      which elements of the full tensor a shard has
    provenance        the full tensor that a deferred shard was sliced from
    rank_agreement    a check that all ranks have recorded the same operations
    one_source        which tensors one rank sends to the others
    sent_targets      the tensors of a module that another rank may send values for
    row_exchange      column shards, assembled from rows that the ranks draw and exchange
    row_packing       the rows that a rank draws, in the order in which they are sent
    exchange_batches  row exchanges, batch by batch; errors are sent to the other ranks
    shared_errors     an error on one rank, raised on all of them
"""

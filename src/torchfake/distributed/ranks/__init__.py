"""The step of one rank of each kind, run on fakes in this process.

Input: a :class:`~torchfake.distributed.ranks.run_rank.Job`. Output: a
:class:`~torchfake.distributed.RankPlan` for each kind of rank. Invariant: torch's own engines run
(FSDP, DTensor, pipeline schedules); nothing is sent; the state of torch is restored afterwards.

Files, in reading order:

    run_ranks           one rank of each kind, senders before the ranks that wait for them
    run_rank            the step of one rank
    fake_process_group  this process as one rank of torch's fake process group
    rank_tracker        storages and messages of the step, recorded
    foreach_ops         an optimizer's operators on lists of DTensors, run on their shards
    shard_sizes         which ranks have shards of equal sizes
    pipeline_loop       a training loop around ``schedule.step``
    point_to_point      messages between two ranks, on the streams of a GPU
    mailboxes           values of these messages, for the ranks that are run later
    rank_plan           the record of the memory and communication of a rank
"""

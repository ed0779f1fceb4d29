"""The step of one rank of each kind, run on fakes in this process.

Input: a :class:`~torchfake.distributed.ranks.run_rank.Job`. Output: a
:class:`~torchfake.distributed.RankPlan` for each kind of rank. Invariant: torch's own engines run
(FSDP, DTensor, schedules of pipelines); nothing is sent; torch is afterwards as it was before.

Files, in reading order:

    run_ranks           one rank of each kind, in an order in which none waits for another
    run_rank            the step of one rank
    fake_process_group  this process as one rank of torch's fake process group
    rank_tracker        storages and messages of the step, recorded
    balanced_routing    equal numbers of tokens for experts, if a plan takes them to be equal
    foreach_ops         an optimizer's operators on lists of DTensors, run on their shards
    shard_sizes         which ranks have shards of equal sizes
    pipeline_loop       a training loop around ``schedule.step``
    point_to_point      messages between two ranks, on the streams of a GPU
    mailboxes           values of such messages, for the ranks that are run later
    rank_plan           what a rank holds and sends, as a record
"""

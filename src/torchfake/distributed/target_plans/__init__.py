"""A TARGET of the command line, planned with a strategy that is derived from its model.

Input: a TARGET, sizes of axes, options. Output: a :class:`~torchfake.distributed.TargetPlan`.
Invariant: what is planned is the printed code, run; nothing is modelled.

Files, in reading order:

    target_plan  the public function and its record
    batch        a global batch as micro-batches
    inputs       the inputs of a rank, and of the stages of a pipeline
    step_time    the time of all micro-batches, of which two were run
    text         a TargetPlan as text
"""

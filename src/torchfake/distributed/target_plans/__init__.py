"""A TARGET of the command line, planned with a strategy that is derived from its model.

Input: a TARGET, sizes of axes, options. Output: a :class:`~torchfake.distributed.TargetPlan`.
Invariant: the plan comes from running the printed code, not from a formula.

Files, in reading order:

    target_plan  the public function and its record
    adapted      a target with quantized weights and adapters
    batch        a global batch as micro-batches
    inputs       the inputs of a rank, and of the stages of a pipeline
    notes        what was assumed and is padded, and what became of the inputs
    remedies     options with which a plan that does not fit does
    text         a TargetPlan as text
"""

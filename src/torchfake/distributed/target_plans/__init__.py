"""How a model is trained on a mesh without code of one's own: options, found in the model, planned.

Input: a TARGET or a model as fakes, sizes of axes, options. Output: a
:class:`~torchfake.distributed.Strategy`, and what ``plan`` says of it. Invariant: what is planned
is the printed code, run; nothing is modelled.

In reading order:

    strategy       the public record: options -> code (by ``parallelize``) -> a function for plan
    batch          a global batch as micro-batches
    pipelines      the same of a pipeline: what its first and its last stage are given
    step_time      the time of all micro-batches, of which two were run
    target_plan    a TARGET of the command line, planned
    text           what was found, as text
"""

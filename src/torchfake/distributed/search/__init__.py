"""The search for layouts: the fastest that fits, and the fewest GPUs on which one fits.

Input: a TARGET, a number of GPUs, a batch. Output: a :class:`Search`. Invariant: a layout that is
reported to fit was run with all layers; the others may be extrapolated from runs with few layers.

Files, in reading order:

    search             the public function and its record
    candidates         the layouts that are tried
    trials             runs candidates, with few layers or all
    measurements       memory and time of one run of a layout, in total and of each block
    extrapolation      memory and time of a layout at full depth, from runs with a few layers
    mixed_checkpoints  blocks of one layout that are checkpointed in different ways
    knapsack           the way to checkpoint each block that fits and takes the least time
    text               a search as text
    peaks              the peaks of a plan at other sizes of its inputs, for ``fit``
"""

"""Which layout: the fastest that fits, and the fewest GPUs that do.

Input: a TARGET, a number of GPUs, a batch. Output: a :class:`Search`. Invariant: a layout that is
said to fit was run whole; others are told apart by few layers of the model, where these grow in
proportion.

Files, in reading order:

    search             the public function and its record
    candidates         the layouts that are tried
    trials             runs candidates, with few layers or whole
    measurements       what one run of a layout takes, in all and of each block
    extrapolation      what a layout takes at full depth, from a few layers
    mixed_checkpoints  blocks of one layout that are checkpointed in different ways
    knapsack           the way for each block that takes the least seconds and fits
    text               a search as text
    peaks              the peaks of a plan at other sizes of its inputs, for ``fit``
"""

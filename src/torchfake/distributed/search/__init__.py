"""Which layout: the fastest that fits, and the fewest GPUs that do.

Input: a TARGET, a number of GPUs, a batch. Output: a :class:`Search`. Invariant: a layout that is
said to fit was run whole; others are told apart by few layers of the model, where these grow in
proportion.

Its files, in reading order:

    candidates  the layouts that are tried
    measured    what one run of a layout takes, in all and of each block
    depths      what a layout takes at full depth, from a few layers
    knapsack    of each block one way to checkpoint it: the least seconds that fit
    mixes       the same of a layout that was measured
    trials      runs candidates, with few layers or whole
    search      the public function and its record
    text        a search as text
    sizes       a plan at other sizes of its inputs, for fit
"""

"""The passes of a served model: what a rank does in one, how long it takes, and what follows.

Input: a model, a layout, lengths of requests. Output: plain frozen records. Invariant: what a rank
holds and multiplies is counted in a run on fakes; times are computed from it.

Files, in reading order:

    rank_record   what a rank holds and does in a pass
    rank_work     finds that out in a run on fakes
    attention     attention by kernels that store no scores
    equal_layers  layers that do what an earlier one does, which are not run again
    formats       how weights are stored, and at which rate they are multiplied
    engines       what serving engines reach, and what they add to each pass
    pass_time     how long a pass takes
    loads         first tokens, and the steady state under a number of users
    capacity      the memory of a GPU, and the users whose caches fit
"""

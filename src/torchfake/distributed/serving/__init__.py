"""A model that is served: which GPUs, to how many users, how fast.

Input: a TARGET, users, GPUs, a layout. Output: plain frozen records. Invariant: what a rank holds
and multiplies is counted in a run on fakes; times are computed from it.

Files, in reading order:

    serve         the public function: checks its arguments, and puts the rest together
    search        the GPUs, layouts and formats that meet limits
    remedies      options with which all users fit, where they do not
    text          a plan and a search as rows
    curve         throughput against latency, as figures
    serving_plan  the record that ``serve`` returns
    server        replicas of a model on GPUs: its memory, and the time of its passes
    loads         first tokens, and the steady state under a number of users
    capacity      the memory of a GPU, and the users whose caches fit
    pass_time     how long a pass takes
    rank_work     what a rank holds and does in a pass, from a run on fakes
    equal_layers  layers that do what an earlier one does, which are not run again
    formats       how weights are stored, and at which rate they are multiplied
    engines       what serving engines reach, and what they add to each pass
"""

"""A model that is served: which GPUs, to how many users, how fast.

Input: a TARGET, users, GPUs, a layout. Output: plain frozen records. Invariant: all figures are
those of a server's passes (``passes``).

Files, in reading order:

    serve         the public function: checks its arguments, and puts the rest together
    serving_plan  the record that ``serve`` returns
    server        replicas of a model on GPUs: its memory, and the time of its passes
    remedies      options with which all users fit, where they do not
    limits        what users are to see, compared with what they do see
    offers        the record of a search: ways to serve, and which are best
    ways          the ways that are tried, and changes with which something meets the limits
    search        the GPUs, layouts and formats that meet limits
    text          a plan as rows
    search_text   a search as rows
    curve         throughput against latency, as figures and in a report
"""

"""What eager refuses and a meta kernel lets pass, found by running eager's kernel on small tensors.

Input: a call that is run for the first time, since the cache has no recipe for it. Output: nothing,
or the error that eager raises. Invariant: what eager accepts is accepted, nothing of the program's
is written, and no generator of the program moves. ``_dispatch`` asks before it runs an operator.

Its files, in reading order:

    small_calls  a call on small real tensors, and what a kernel says of it
    draws        whether eager accepts the dtypes and the parameters of a draw
    dtypes       whether it accepts the dtypes of any call
    strings      the same of strings among the arguments
    overlaps     the same of calls that write memory that repeats, or that other arguments read
"""

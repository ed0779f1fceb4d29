"""How long a step takes on a GPU, predicted without one.

Input: the operators of a step in the order in which the program launches them, each with its
stream, and the events that streams wait for. Output: when each operator would begin and end, and
what the step waits for. Invariant: an operator's time follows from its FLOPs, its bytes and the
figures of the GPU; nothing is measured here, and every figure names its source.

Its files, in reading order:

    hardware       peak FLOP/s and bandwidths of GPUs and their links, from datasheets
    work           the FLOPs and the bytes of one call of an operator
    tiles          how long a matrix product takes, tile by tile
    efficiency     the share of a datasheet's figures that kernels reach; seconds of one call
    collectives    seconds of one collective
    commands       the commands that the program puts on streams, in order
    meetings       a message between two ranks begins when both ranks have reached it
    machine        simulates a GPU that runs commands, one after the other on each stream
    schedule       the beginning and the end of each command
    compared       with which measurements times were compared, and how far they were off
    slow_products  matrix products without tensor cores, and their time with autocast
    trace          a schedule as a trace for Perfetto
"""

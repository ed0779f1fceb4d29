"""Random numbers: positions in the sequences of generators, and generators at any position.

Input: draws as they are recorded, generators and their states. Output: the position of each draw
in its generator's sequence, and generators at these positions when the draws are replayed.
Invariant: values do not depend on the order of replay, nor on how a draw is split; the program's
generators are never drawn from.

A generator's sequence is its random words: 32-bit outputs of MT19937, for the CPU. A position is a
generator state (the anchor) and an offset of so many words after the state.

Its files, in reading order:

    mt19937           the state of a CPU generator any number of words later, without drawing them
    draw_sizes        the number of words that a random operator draws
    recorded_draws    the position of each recorded draw in its generator's sequence
    generator_memory  the bytes of a generator's state, read where they lie in memory
    lazy_generators   the state that a generator would have after all draws of fakes
    word_counts       the words that a draw by any random operator takes
    fake_generators   generators of accelerators that are not there
    generator_pool    generators at given positions, for a replay
"""

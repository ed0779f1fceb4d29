"""What the modules of a model pass to each other, read off a run on fakes.

Input: a fake copy of a module. Output: calls of modules, and functions between them, with the
tensors that each takes from another. Invariant: what is recorded was done, in its order; so nothing
depends on what comes after it.

In reading order:

    model_graph  the public function, and its record: a graph
    recording    the run: every call of a module, every function, and whose results each reads
    signatures   which calls do the same
    repeats      repetitions in a sequence
    folding      what is shown at a depth: boxes, frames around them, repetitions as one
    links        the edges between what is shown
"""

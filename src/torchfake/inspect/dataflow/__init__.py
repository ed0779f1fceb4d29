"""The data flow between the modules of a model, recorded in a run on fakes.

Input: a fake copy of a module. Output: calls of modules, and functions between them, with the
tensors that each reads from another. Invariant: calls and functions are recorded in execution
order, so each reads only from earlier ones.

In reading order:

    model_graph  the public function, and its record: a graph
    recording    records a run: calls of modules, functions, and whose results each reads
    signatures   numbers calls and functions so that equal numbers do the same
    repeats      finds repetitions in a sequence
    folding      the places shown at a depth: boxes, frames around boxes, repetitions as one
    links        the edges between these places
"""

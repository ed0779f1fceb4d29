"""A step that is a function of the user's: copied with all that it refers to, and run on fakes.

Input: a function, and the arguments that it is called with. Output: the lifetimes of all storages
of its first call and of a later one. Invariant: nothing that the function refers to is touched: no
parameter, gradient, optimizer, list or counter.

Its files, in reading order:

    copies        a copy of a program: fakes for tensors, and copies for all that holds them
    measure       the run, with the phases of a step as they are noticed
"""

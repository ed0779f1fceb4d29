"""Fake copies of what a user gives: modules, arguments, functions, whole programs.

Input: modules, functions and objects of the user. Output: copies that hold fakes in place of
tensors. Invariant: nothing that was given is run, written or kept: no parameter, gradient,
optimizer, list or counter.

In reading order:

    references  what a function refers to: closures, globals that it names, attributes
    functions   copies of functions that refer to copies
    arguments   the arguments of a call: the tensors that they hold, and fake copies of them
    workload    a module, inputs, a device: what is run and where; a fake copy of it
    programs    a function of the user's that does a whole step, and a fake copy of it
"""

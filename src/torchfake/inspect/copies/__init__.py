"""Fake copies of the user's objects: modules, arguments, functions, whole programs.

Input: modules, functions and objects of the user. Output: copies that hold fakes in place of
tensors. Invariant: none of the user's objects is run or changed: no parameter, gradient, optimizer,
list or counter.

In reading order:

    references  the objects that a function refers to: closures, globals that it names, attributes
    functions   copies of functions that refer to copies
    arguments   the arguments of a call: the tensors that they hold, and fake copies of them
    balanced_routing  the assumption that all experts of a mixture get equally many tokens
    workload    what is run and where: a module, inputs, a device; a fake copy of these
    programs    a fake copy of a function of the user that performs a whole step
"""

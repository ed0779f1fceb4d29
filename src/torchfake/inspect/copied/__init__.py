"""What objects of the user refer to, and copies of it.

Input: functions and objects. Output: the tensors that they hold, and copies that hold fakes in
their place. Invariant: nothing that a function or an object refers to is touched.

Its files, in reading order:

    references    what a function refers to: closures, globals that it names, attributes
    functions     copies of functions that refer to copies
    arguments     the arguments of a call: the tensors that they hold, and fake copies of them
"""

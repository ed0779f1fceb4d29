"""What results are made of: the base of all records; tensors, names, numbers and errors as text.

Input: tensors and containers of them, names of modules and tensors, counts, errors. Output: plain
data and text. Invariant: nothing here knows a model; all other packages of inspect may use it.

In reading order:

    record        the base class of all records, and the functions that decide how a record looks
    tensor_specs  shape, dtype and device in place of each tensor; these as JSON and text
    module_names  full names: joining them, their ancestors, many names as one with ranges
    units         counts, bytes and operations with the units that people use
    messages      an error on one line; the answers to questions about values
    moved         where classes of records were, for pickles
"""

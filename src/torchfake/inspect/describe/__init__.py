"""How tensors, names, numbers and errors are written in records and messages.

Input: tensors and containers of them, names of modules and tensors, counts, errors. Output: plain
data and text. Invariant: nothing here knows a model or a record; every other package of inspect may
use it.

In reading order:

    tensor_specs  shape, dtype and device in place of each tensor; these as JSON and text
    module_names  full names: joining them, their ancestors, many names as one with ranges
    units         counts, bytes and operations with the units that people use
    messages      an error on one line; the known names closest to a misspelt one
"""

"""The base of all records; tensors, names, numbers and errors as text.

Input: tensors and containers of them, names of modules and tensors, counts, errors. Output: plain
data and text. Invariant: nothing here depends on a model; all packages of inspect may import it.

In reading order:

    record        the base class of all records, and the functions that display a record
    tensor_specs  shape, dtype and device in place of each tensor; these as JSON and text
    module_names  full names: joins them, lists their ancestors, abbreviates many with ranges
    units         counts, bytes and operations as text with units
    messages      an error on one line; the answers to questions about unknown values
    moved         earlier modules of record classes, so that old pickles load
"""

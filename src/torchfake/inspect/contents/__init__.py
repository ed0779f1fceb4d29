"""What models and checkpoints contain: tensors by module and by name, and how two of them differ.

Input: modules, TARGETs, checkpoints. Output: plain records. Invariant: nothing is run, and of a
checkpoint only the headers are read.

In reading order:

    tree     a module as a tree, equal blocks folded into one
    experts  the parameters of a mixture of experts that compute a token
    weights  the bytes of a model's weights, quantized
    tensors  the tensors of a model or checkpoint by name
    renames  a prefix of names that one of two models has renamed
    diff     what differs between two models or checkpoints
    changes  the differences grouped into lines
"""

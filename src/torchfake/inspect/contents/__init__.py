"""What models and checkpoints contain: tensors by module and by name, and how two of them differ.

Input: modules, TARGETs, checkpoints. Output: plain records. Invariant: no module is run, and only
the headers of checkpoints are read.

In reading order:

    tree     a module as a tree, identical blocks folded into one
    positions  how many positions a model has for a text
    experts  the parameters of a mixture of experts that are used for one token
    schemes  how libraries quantize the weight of a layer
    weights  the bytes of a model's weights, quantized
    described  the format of weights that a config describes, where a module does not have it
    configs  the configs of two models, compared key by key
    tensors  the tensors of a model or checkpoint by name
    renames  finds a prefix of names that differs between two models
    diff     the differences between two models or checkpoints
    changes  groups the differences into lines
    complete  whether the tensors of a checkpoint are those of the model of its config
"""

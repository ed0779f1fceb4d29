"""Resolves a TARGET of the command line, and builds it without its weights.

Input: a TARGET as text, and options as text. Output: a module whose tensors are all fake, or a
directory of initialized weights. Invariant: no weights are downloaded (from the Hub, only configs
and headers of weights), and no code from a checkpoint runs; errors are TargetErrors of one line
that name the remedy.

In reading order:

    target                the record of a resolved TARGET: a name, a constructor, a dtype
    resolve               text -> Target: a transformers class, a config file, or a callable
    transformers_models   classes of transformers and config files -> Target
    libraries             models of timm, torchvision and diffusers -> Target
    hub                   an id of the Hub -> its config, and the headers of its weights
    saved_tensors         the headers of a checkpoint -> a module of its tensors
    imports               importing a library, without garbage collection
    json_files            JSON files, read with limits
    transformers_configs  configs of transformers with some keys overridden
    options               options given as text: overrides, dtypes, devices
    build                 Target -> a fake module, and the cost of building it
    initialize            a TARGET -> a directory of its initialized weights
"""

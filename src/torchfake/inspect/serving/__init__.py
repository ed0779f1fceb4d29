"""A model serves sequences, on fakes: prompts are read, tokens are generated, a cache is held.

Input: a fake copy of a model, and a :class:`~torchfake.inspect.serve.Serve`. Output: the lifetimes
of all storages, and what each layer has cached. Invariant: a cache of transformers is the object
that ``generate`` would use, and is run; only blocks of an engine are computed.

In reading order:

    cache_record  what is cached in each layer, as data
    caches        makes the caches of transformers, by name
    blocks        the cache of an engine: blocks, computed from what a short run caches
    passes        the passes that can hold the most memory, tracked
"""

"""Serving on fakes: a model reads prompts and generates tokens for many users, with a KV cache.

Input: a fake copy of a model, and a :class:`~torchfake.inspect.serve.Serve`. Output: the lifetimes
of all storages, and what each layer has cached. Invariant: a cache of transformers is the object
that ``generate`` would use, and is run; only a paged cache is computed.

In reading order:

    cache_record  the record of a cache: its layers and their bytes
    caches        creates the caches of transformers, by name
    blocks        the paged cache of a serving engine, computed from what short runs cache
    passes        runs and tracks the passes that can hold the most memory
"""

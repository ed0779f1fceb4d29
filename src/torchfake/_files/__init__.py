"""Checkpoints: the values of modules, read from files and written to files.

Input: a module, deferred or real, sharded or not; and a checkpoint to read, or a directory to write
to. Output: values copied to the module's tensors; or files with the values that the module has once
materialized. Invariant: neither reading nor writing brings a whole module into memory: values are
read where they are used, and computed where they are written; each rank handles its own shards.

Files for reading, in the order in which data flows:

    load                      a checkpoint, opened: its tensors by name, memory-mapped
    load_distributed          directories of torch.distributed.checkpoint, read by slices
    transformers_checkpoints  transformers models, whose own functions rename, merge and split
    assign                    values matched to the tensors of a module, checked, and copied

Files for writing, in the order in which data flows:

    save         one save, step by step
    state_dict   the tensors of a module: collected, checked, digested
    directory    the output directory: files of earlier calls kept, refused or removed
    file_plan    which tensor goes to which file
    write        values, computed and written; each rank writes its own shards
    safetensors  the format of a file
    lock         one save at a time in a directory
    disk         atomic file writes, and errors of the operating system
"""

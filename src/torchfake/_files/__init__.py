"""Checkpoints: the values of modules, read from files and written to files.

Input: a module, deferred or real, sharded or not; and a checkpoint to read, or a directory to write
to. Output: values copied to the tensors of the module; or files with the values that it would have.
Invariant: a module is never in memory as a whole because of its files: values are read where they
are used, and computed where they are written; each rank reads and writes its own shards.

Files for reading, in the order in which data flows:

    load                      a checkpoint, opened: its tensors by name, memory-mapped
    load_distributed          directories of torch.distributed.checkpoint, read by slices
    transformers_checkpoints  what transformers renames, merges and splits, done by its functions
    assign                    values matched to the tensors of a module, checked, and copied

Files for writing, in the order in which data flows:

    save         one save, step by step
    state_dict   the tensors of a module: collected, checked, digested
    directory    what earlier calls have left, and what no longer belongs
    file_plan    which tensor goes to which file
    write        values, computed and written; of several ranks, each its shards
    safetensors  the format of a file
    lock         one save at a time in a directory
    disk         files that are complete or not there, and what the system refuses
"""

"""What may go wrong with a disk, and who else may be writing there.

Input: paths. Output: files that are complete or not there, and errors that say what is to be done.
Invariant: nothing here knows tensors; a process that is killed leaves nothing that keeps a later
one from its work.

In reading order:

    failures    what the system refuses, as a CheckpointError with file, bytes and remedy
    incomplete  files that have another name until they are complete
    lock        one save at a time in a directory
"""

"""The graph of recorded operations.

Input: operations on deferred fakes, from ``_recording``. Output: the operations on which given
contents depend, in recorded order, and digests of them. Invariant: references point backwards only.
A deferred storage references its contents, contents reference the operation that wrote them, an
operation references the contents that it read. Nothing in the graph references a storage or a fake,
so an operation is freed at once when no contents depend on it.

Views are not operations: a fake is a record of metadata and a storage, so only operations that make
or write a storage are in the graph.

Its files, in reading order:

    externals         real tensors among the arguments, and whether they were written later
    file_slices       bytes of files, and whether the files were changed later
    rare_fields       attributes that few objects of a class have
    operations        operations, cells and their contents; dependencies
    deferred_storage  the state of a deferred storage: its contents, or its real storage
    digest            digests of operations and contents: equal digests mean equal values
"""

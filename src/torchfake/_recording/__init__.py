"""Recording of operations on deferred fakes.

Input: operations, as they are dispatched. Output: their results, and the graph of operations that
:mod:`torchfake._replay` executes later. Invariant: an operation that cannot be replayed with
eager's values is refused, when recorded or when replayed; a replay never gives other values.

Files in reading order:

    record             the entry: an operation is run on fakes and added to the graph
    hits               the fast path of record, for operations whose result is cached
    arguments          which kinds of tensors are among the arguments of a call
    graph_builder      new operations of the graph, and the contents that they leave in storages
    initializers       functions of torch.nn.init that are recorded as one operation
    value_reads        operations whose outcome depends on values: executed while recording
    sparse_tensors     operators on sparse tensors, which stay real: executed at once
    generator_sync     positions of draws, and generators moved as eager mode moves them
    local_collectives  collectives as copies on this rank
    graph_text         the graph behind a tensor as text, for users

The subpackage ``eager`` has the operators that C++ computes differently for tensor subclasses.
"""

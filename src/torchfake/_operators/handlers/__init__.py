"""Handlers of operators that the general procedure does not fit.

Input: a call of such an operator. Output: its result, as fakes. Invariant: a handler calls the
general procedure (``interpreter``) where a part of the operator fits it; that knows no handler.

Its files, in reading order:

    special_operators  the table of handlers, and most of them
    storages           the handlers of set_, of views by stride and of pinned memory
    collectives        operators of torch.distributed: their metadata, and the bytes they send
"""

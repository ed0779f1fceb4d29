"""What an operator computes: its FLOPs, the bytes that it moves, and whether its FLOPs are known.

Input: calls of operators on fakes. Output: FLOPs and bytes. Invariant: an operator has a formula,
or its time is that of the bytes that it moves, or it is listed as one whose FLOPs are not known: no
operator counts as nothing in silence.

Its files, in reading order:

    call          one call of an operator, its arguments by name
    kinds         kinds of operators: those whose time is that of their bytes, and the others
    moved_bytes   the bytes that a call reads and writes
    products      formulas of matrix products
    attention     formulas of attention
    layers        formulas of convolutions, recurrent layers and encoder layers
    matrices      the matrix products that a call computes, by their sizes
    formulas      the FLOPs of any call: torch's formulas and ours
    uncounted     the operators whose FLOPs are not known, with their calls and bytes
"""

"""Adapters to the parts of torch that take functions: torch.compile, tracers, some operators.

Input: functions of torch and of the program, and their frames. Output: functions rebuilt, wrapped
and recognised by their code; the modes of tracers, put back. Invariant: ``torch._dynamo`` and the
tracers are not imported here: torch imports them late, and in few processes.

Its files, in reading order:

    python_functions  Python functions of torch: rebuilt, unwrapped, recognised by their code
    tracer_modes      the modes that torch's tracers turn on, kept or put back
    frames            which frames torch.compile takes over, and the import of its tracer
    higher_order      operators that take functions: their kernels, and where fakes get one
    scripts           TorchScript: its executor, calls of scripts, what folds values into them
"""

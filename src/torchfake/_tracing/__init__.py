"""Parts of ``torchfake.fx``: tracing modules that are fake, deferred, on ``meta`` or real.

Input: a module or function, and inputs, from ``torchfake.fx``. Output: fake copies that torch's
tracers (``symbolic_trace``, ``make_fx``, ``torch.export``) can run, and graphs with metadata on
their nodes. Invariant: a tracer runs a copy; the module and its tensors are not changed.

Files, in reading order:

    trace_modes          the modes in which copies are made and traced
    fake_copies          fake copies of modules and inputs, one kind for each tracer
    torch_fakes          fakes of torch's own kind, which torch's passes expect
    bound_call           a call of a function, as a function of its tensor arguments
    captured_tensors     make_fx: tensors that are not inputs become attributes of the graph
    shape_propagation    symbolic_trace: shapes, dtypes and devices of nodes
    export_without_cuda  export: torch's own fakes on CUDA, on a machine without CUDA
    meta_patcher         MetaAwareMethodsPatcher: layers built on meta that take real inputs
"""

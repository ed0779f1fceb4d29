"""The function ``parallelize(model, mesh)`` of a model, as text: what is found in the model, and
how it is laid out over the axes of a mesh.

Input: a model as fakes, the sizes and names of axes, options. Output: the text, to paste and to
run. Invariant: the model is not changed.

In reading order:

    mesh_axes      the axes of a mesh by what they do: --mesh dp=8,tp=8
    blocks         the repeated blocks of a model
    tensor_rules   its rules of tensor parallelism, and whose code follows them
    writer         the text while it is written, and how names are written
    tensor         the lines that split tensors
    sequence       the same, and the sequence between them
    experts        the lines that give ranks experts of their own
    context        the lines that split sequences, and the context that does
    choices        which blocks are checkpointed, and how: checkpoint=
    checkpoints    the lines that checkpoint activations
    data           the lines that shard or copy
    schedules      schedules of pipelines by name
    pipeline       the stages of a pipeline, and its schedule
    engines        the same with DDP or FSDP1
    code           all of it, in order
"""

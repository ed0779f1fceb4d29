"""The function ``parallelize(model, mesh)`` of a model, as text: what is found in the model, and
how the model is laid out over the axes of a mesh.

Input: a model as fakes, the sizes and names of axes, options. Output: the text, to paste and to
run. Invariant: the model is not changed.

Files, in reading order:

    code                what the function consists of, in order
    mesh_axes           the axes of a mesh by what they do: --mesh dp=8,tp=8
    blocks              the repeated blocks of a model
    writer              the text while it is written, and how names are written
    tensor_parallel     rules of tensor parallelism, and the lines that follow them
    sequence_parallel   the same, with the sequence split between the tensors
    context_parallel    the lines that split sequences, and the context that splits a batch
    expert_parallel     the lines that give ranks experts of their own
    checkpoints         which blocks are checkpointed (checkpoint=), and the lines that do it
    data_parallel       the lines that shard or copy: FSDP2, FSDP1, DDP
    pipeline_schedules  schedules of pipelines by name
    pipeline_parallel   the stages of a pipeline, and its schedule
"""

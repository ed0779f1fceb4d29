"""The generated function ``parallelize(model, mesh)``, which lays a model out over a mesh.

Input: a model as fakes, the sizes and names of axes, options. Output: the source text of the
function, to paste and to run. Invariant: the model is not changed.

Files, in reading order:

    code                the whole function, part by part
    mesh_axes           the axes of a mesh by purpose: --mesh dp=8,tp=8
    blocks              the repeated blocks of a model
    writer              a buffer for the text, and expressions for names
    tensor_parallel     rules of tensor parallelism, and the lines that apply them
    sequence_parallel   tensor parallelism that also splits the sequence between split tensors
    context_parallel    the lines that split sequences, and the context that splits a batch
    expert_parallel     the lines that distribute experts over ranks
    checkpoints         which blocks are checkpointed (checkpoint=), and the lines that do it
    data_parallel       the lines that shard or replicate: FSDP2, FSDP1, DDP
    pipeline_stages     schedules of pipelines by name, and which stages each rank has
    pipeline_parallel   the stages of a pipeline, and its schedule
"""

"""How a model is laid out over a mesh without code of one's own: found in the model, and written as
the code to paste, which is also what a plan runs.

Input: a model as fakes, and the sizes and names of the axes of a mesh. Output: a
:class:`~torchfake.distributed.Strategy`, and the text of a function ``parallelize(model, mesh)``.
Invariant: what is planned is the printed code, run; nothing is modelled.

In reading order:

    mesh_axes      the axes of a mesh by what they do: --mesh dp=8,tp=8
    blocks         the repeated blocks of a model
    tensor_rules   its rules of tensor parallelism, and whose code follows them
    code           the function that lays it out, as text
    strategy       the public record: options -> code -> a function for plan
    batch          a global batch as micro-batches
    step_time      the time of all micro-batches, of which two were run
    target_plan    a TARGET of the command line, planned
    text           what was found, as text
"""

"""A module is run once on fakes, and every allocation of the run is recorded.

Input: a module, its inputs, a device, and what a step does with them. Output: the lifetimes of all
storages, from which ``memory`` accounts peaks. Invariant: the module and the inputs that were given
are not touched; a fake copy of them is run.

In reading order:

    workload         module, inputs, device: what is run and where; a fake copy of it
    step             what a step does: forward, loss, optimizer, autocast; the options checked
    module_tensors   the tensors of a module, each with the name of the module that it is in
    backward         the loss of a step, and its backward pass
    training         a plain training loop, with accumulation, gradients freed or zeroed
    training_arguments  transformers' TrainingArguments, read
    trainer_loop     the loop of transformers' Trainer
    adapters         adapters of PEFT on a fake copy
    execution        runs a step on a fake copy
    generation       runs the passes of generation with a key-value cache
    optimizers       makes the optimizer that an option names
    bounds_check     refuses known indices that are out of bounds, as eager does
    storage_tracker  records when each storage is allocated and freed, and for what
    lifetimes        those records as columns: bytes held after each event
    cuda_memory      what CUDA adds: rounding of allocations, workspaces of cuBLAS
    kernel_memory    what kernels of CUDA allocate while they run
    attention_memory  that of attention's kernels
    reduction_memory  that of reductions
"""

"""How much memory a step takes, and which GPUs it fits on.

Input: a module, inputs, what to do with them; GPUs. Output: records: the lifetimes of all storages,
peaks, and which GPUs the step fits on. Invariant: bytes are those that operators request, rounded
as the device rounds them; an estimate lists what it leaves out of a real run.

In reading order:

    estimate         the public function: collects its arguments, has the step run, accounts it
    estimate_record  the record: the peak, the bytes at every moment, by category and by module
    counted          what was counted: the kind of step, the optimizer, the sizes of the inputs
    reserved         the memory that the caching allocator reserves for the step
    small_heap       keeps the garbage collector from traversing all of the process during a run
    left_out         what an estimate leaves out of a real run
    limited          what a step reserves on a GPU with limited memory
    peaks            the peaks of a step at other sizes and on other GPUs
    search           the largest size at which a step fits
    fit_record       the records of a fit: whether the step fits on each of several GPUs
    fit              which GPUs a step fits on, and the largest batch or sequence that fits
    several_gpus     the plan to try if the step fits on no single GPU
"""

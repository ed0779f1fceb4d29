"""How much memory a step takes, and where that fits.

Input: a module, inputs, what to do with them; GPUs. Output: records: the lifetimes of all storages,
peaks, and which GPUs the step fits on. Invariant: bytes are those that operators request, rounded
as the device rounds them; what an estimate leaves out, it names.

In reading order:

    estimate         the public function: collects its arguments, has the step run, accounts it
    estimate_record  the record: the peak, the bytes at every moment, by category and by module
    reserved         what the caching allocator reserves for that
    left_out         what an estimate leaves out of a real run
    search           the largest size at which a step fits
    fit              which GPUs a step fits on, and the largest batch that does
    several_gpus     the plan to try where it fits on none
"""

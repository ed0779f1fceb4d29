"""Steps: what a program does with a model again and again, run on a fake copy of the model.

Input: a fake copy, and what a step does with it. Output: a tracker of storages has observed the
step. Invariant: a step holds what a plain training loop would hold, and frees it when that would.

In reading order:

    step                what a step does: forward, loss, optimizer, autocast; the options checked
    module_tensors      the tensors of a module, each with the name of the module that it is in
    backward            the loss of a step, and its backward pass
    optimizers          the optimizer that an option names
    training            a plain training loop, with accumulation, gradients freed or zeroed
    training_arguments  transformers' TrainingArguments, read
    trainer_loop        the loop of transformers' Trainer
    adapters            adapters of PEFT on a fake copy
    generation          the passes of generation with a key-value cache
    execution           runs any of these steps
    program             runs a step that is a function of the user's, and notices its phases
"""

"""Steps: one iteration of training, inference, or generation, run on a fake copy of a model.

Input: a fake copy, and a description of the step. Output: a storage tracker has observed the step.
Invariant: a step holds the tensors that a plain training loop holds, and frees them when it does.

In reading order:

    step                the description of a step: loss, optimizer, autocast; checks its options
    module_tensors      the tensors of a module, each with the name of the module that it is in
    backward            the loss of a step, and its backward pass
    optimizers          creates the optimizer that an option describes
    training            a plain training loop, with accumulation, gradients freed or zeroed
    training_arguments  the settings of transformers' TrainingArguments that concern a step
    trainer_loop        the loop of transformers' Trainer
    adapters            adds PEFT adapters to a fake copy
    quantized           quantizes its weights, by the layers of a library
    generation          the passes of generation with a key-value cache
    execution           runs any of these steps
    program             runs a step that is a function of the user, and detects its phases
"""

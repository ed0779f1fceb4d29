"""Inputs of models of timm, torchvision and diffusers, as the library itself prepares them.

Input: a model, a batch size, perhaps a number of text tokens. Output: the arguments of its
``forward``, as fakes. Invariant: sizes come from the model, its config, or what the library says of
its weights; no library is imported that the model's own class did not import.

In reading order:

    of_libraries   the library that a model is of, and its factory
    pictures       pictures and videos of one value
    timm_models    timm: the input size of the default config
    torchvision_models  torchvision: the transforms of the weights of the nearest size
    diffusion_sizes     diffusers: sizes of latents and texts, from config and pipeline
    diffusion      diffusers: arguments of transformers, UNets and autoencoders, by name
"""

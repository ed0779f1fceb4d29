"""Generates inputs for models of known libraries, and resizes them to other batches and lengths.

Input: a model, a batch size, a sequence length. Output: the arguments of its ``forward``, as fakes.
Invariant: the model is neither run nor changed; no weight is read and nothing is downloaded.

In reading order:

    example_inputs     the public function, and the dict that it returns
    sizes              sizes of texts, images and sounds, from the model's config
    forward_arguments  which arguments a model needs, and the factory of each
    constant_tensors   tensors of one value, and masks whose values models read
    text_tensors       token ids, masks and positions
    image_tensors      images, videos, patches and their grids
    audio_tensors      waveforms, spectrograms and time series
    labels             the arguments for which the output has a loss
    resizing           inputs for another batch size or sequence length
    given              inputs from the arguments of other functions: tensors, sizes, shapes
    libraries          models of timm, torchvision and diffusers
    hints              what an input of a module may look like
    written            inputs from text of the command line: shapes and dtypes
"""

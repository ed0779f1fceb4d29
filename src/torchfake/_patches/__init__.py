"""Functions of torch that bypass dispatch, replaced while a mode is on.

Some functions of torch make tensors, compare devices or describe the machine in C++, where no mode
sees them. While a mode is on, functions of this package take their places in torch.

Input: modes entered and left, from :mod:`torchfake.fake`. Output: torch with and without the
replacements. Invariant: a replacement first checks whether *this thread* is in a mode, and calls
the original if it is not; when the last mode of the process is left, every original is back,
except where fakes need a replacement as long as they live (``while_fakes_live``).

Its files, in reading order:

    patch             the replacement of one attribute, and sets of replacements
    while_fakes_live  replacements in torch's tracers, DTensor and DDP, as long as a fake lives
    install           which patches any mode needs, and which a mode with fake devices needs
    device_arguments  functions whose C++ reads device arguments before anything is dispatched
    wrapper_devices   wrapper subclasses of fakes on fake devices
    autocast          the functions that switch autocast on and off
    threads           modes propagated into threads, and into work submitted to executors
    entry             entry and exit of a mode, wherever an interrupt arrives
    imports           modules imported in a mode run outside of it
    caches            caches of torch and of transformers, which keep no fakes
    libraries         libraries that compare exact classes or cache the available devices
    compiled          torch.compile: compiled functions run uncompiled in a mode and on fakes

The subpackage ``sources`` makes fakes of memory, files and copies of real tensors; by
``accelerators``, torch.cuda, torch.accelerator and similar modules describe the fake machine;
``torchscript`` is for scripts and traces, which keep no fakes.
"""

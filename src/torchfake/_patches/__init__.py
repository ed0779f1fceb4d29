"""Functions of torch that bypass dispatch, replaced while a mode is on.

Some functions of torch make tensors, compare devices or describe the machine in C++, where no mode
sees them. While a mode is on, their attributes in torch are replaced by functions of this package.

Input: modes entered and left, from :mod:`torchfake.fake`. Output: torch with and without the
replacements. Invariant: a replacement first checks whether *this thread* is in a mode, and calls
the original if it is not; when the last mode of the process is left, every original is back, but
for those that fakes need as long as they live (``while_fakes_live``).

Its files, in reading order:

    patch             one replacement of one attribute, and sets of them
    while_fakes_live  torch's tracers, DTensor and DDP, as long as a fake lives
    install           which patches any mode needs, and which a mode with fake devices needs
    device_arguments  functions whose C++ reads device arguments before anything is dispatched
    wrapper_devices   wrapper subclasses of fakes on fake devices
    autocast          the functions that switch autocast on and off
    threads           modes that follow into threads, and into work for executors
    missing_devices   torch's errors of missing CUDA devices name fake_cuda=
    entry             a mode entered and left, wherever an interrupt arrives
    libraries         exact classes that libraries compare, and devices that they remember
    compiled          torch.compile: compiled functions run uncompiled in a mode and on fakes

The subpackage ``sources`` has memory, files and copies of real tensors, of which fakes are made;
``accelerators`` has torch.cuda, torch.accelerator and their kin, which describe the fake machine.
"""

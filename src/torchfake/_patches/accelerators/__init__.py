"""Modules of accelerators, such as ``torch.cuda``, which describe the fake machine.

Input: a mode with fake devices. Output: patches by which the module of the device type, and
``torch.accelerator``, answer for these devices. Invariant: every public function is answered,
refused by name, or torch's own and calls only answered ones; none starts a driver. On a thread
whose mode has no such devices, each is the original.

Its files, in reading order:

    class_stand_ins  classes that stand for classes of torch
    tables           tables of answers for a module, and the patches made of them
    machine          answers for any fake machine: devices, memory, seeds
    streams          streams and events: all work is always done
    stand_ins        stand-ins for classes that C++ constructs, and for missing modules
    cuda             the table of torch.cuda
    others           the tables of torch.mps, torch.xpu, torch.mtia and torch.accelerator
    parallel         torch.nn.parallel between fake devices is refused
    missing_devices  torch's errors about missing CUDA devices name fake_cuda=
"""

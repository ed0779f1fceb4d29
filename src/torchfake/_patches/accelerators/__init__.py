"""Modules of accelerators, ``torch.cuda`` and its kin, which describe the fake machine.

Input: a mode with fake devices. Output: patches that have the module of its device type, and
``torch.accelerator``, answer for these devices. Invariant: every public function is answered,
refused by name, or torch's own on top of these; none of them starts a driver. On a thread whose
mode has no such devices, each is the original.

Its files, in reading order:

    class_stand_ins  classes that stand for classes of torch
    tables           what a table says of a module, and the patches that follow from it
    machine          what can be asked of any fake machine: devices, memory, seeds
    streams          streams and events: all work is always done
    stand_ins        classes of torch that C++ constructs, and modules that are not there
    cuda             the table of torch.cuda
    others           the tables of torch.mps, torch.xpu, torch.mtia and torch.accelerator
"""

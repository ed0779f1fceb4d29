"""TorchScript in a mode, and with fakes outside of modes: scripts and traces keep no fakes.

Input: calls of scripts, and functions that are traced. Output: what eager gives, as fakes, and
graphs without fakes. Invariant: what a graph keeps (constants, profiles, plans) is what it would
keep if there had been no mode and no fake.

Its files, in reading order:

    scripts   calls of scripts
    folding   what writes values into graphs, or prints them
    files     scripts that are read from files, and written to them
    traces    torch.jit.trace: constants of the graph are real
"""

"""The ``torchfake`` command: inspect, fit, plan, serve, graph, diff, init.

Input: the arguments of the command line. Output: an answer on stdout, or one line on stderr, and an
exit code. Invariant: stdout has the answer only, and names from files and modules are escaped;
``--help`` does not import torch, which takes seconds.

Files, in reading order:

    interrupts  Ctrl-C, also while torch is being imported
    stdout      the output, written at the end and in one place
    help        the text of ``--help``: options in groups
    options     the options that several commands take, and parsers of their text
    unknown_options  what an option that does not exist may mean
    output      a record on stdout, an error on one line
    suggestions commands to try where nothing fits
    commands    inspect, fit and diff; the application of typer
    init        the command init
    graph       the command graph
    plan        the command plan
    serve       the command serve
"""

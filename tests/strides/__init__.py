"""Strides of results and gradients in all layouts, against eager: ``nox -s strides``.

Its files, in reading order:

    arrangements  the sizes and layouts that arguments are brought into
    calls         torch's databases of operators and modules, as calls of functions of tensors
    outcomes      what a call gives, forward and backward, and how two differ
    outputs       calls with ``out=``: what it is afterwards, and its materialized values
    operations    the operators that a call consists of, each compared alone
    shortfalls    what differs, and why
    children      all calls, compared in processes that a kernel may end
    sweep         the command
"""

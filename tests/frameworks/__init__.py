"""Deferred modules in other people's frameworks, on two gloo processes: ``nox -s frameworks``.

A program builds a model, hands it to a framework and trains two steps. It is run on a model built
eagerly, then on deferred ones that are materialized at each place where a user might do that. What
is asked for: the weights and losses of the eager run, bit for bit, or an error that names
``materialize_module``; never other weights, never a hang.

Files: ``program`` has what a program is made of, ``torch_programs`` and one file for each framework
have the programs, ``worker`` runs one on one rank, ``run`` runs all and prints the table.
"""

"""Records as rows, and rows as text and in a terminal.

Input: a record. Output: rows; text, or rich renderables. Invariant: a record is written once, as
rows, from which text, terminal, notebooks and pages are drawn (the last two by ``figures``); rows
are computed only when a record is shown, and rich is imported only then.

In reading order:

    register       imports the files below, and those of ``figures``, when a record is first shown
    rows           what rows are, and how a new record is written as rows
    layout         rows as lines of text, within the width of a terminal
    terminal       such lines with the colours of a terminal, by rich
    headline       the first line about a model
    step_time      the time of a step and its error, as lines and as a part of the first line
    verdict        whether a step fits, as one line; the largest size that does
    step_lines     a step: its memory, what it serves
    summary_table  the tree of a summary as rows
    graph_text     a graph as rows
    text           all other records as rows
"""

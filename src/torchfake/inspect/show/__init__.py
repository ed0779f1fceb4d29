"""Records as text, and in a terminal.

Input: a record of what was found. Output: text, or what rich prints. Invariant: all of them are
made from the same rows and lines as HTML and figures are (see ``figures``); none is made before it
is asked for, and rich is imported only then.

In reading order:

    register       has the files below, and those of ``figures``, imported when a record is shown
    headline       the first line about a model
    summary_table  the rows of a summary's tree, which text, terminal and HTML share
    verdict        the answer to whether it fits, as one line
    text           plain text, and the lines of totals that all kinds share
    diff_text      the plain text of a diff
    serving_text   what is served, and how much of it fits
    graph_text     a graph as a table
    terminal       tables and colours for rich, fitted to a width
"""

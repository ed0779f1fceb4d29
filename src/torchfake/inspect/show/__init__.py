"""Records as text, and in a terminal.

Input: a record. Output: text, or rich renderables. Invariant: text, terminal and HTML (see
``figures``) share the same rows and lines; they are computed only when a record is shown, and rich
is imported only then.

In reading order:

    register       imports the files below, and those of ``figures``, when a record is first shown
    lines          lines and tables, within the width of a terminal
    headline       the first line about a model
    summary_table  the rows of a summary's tree, which text, terminal and HTML share
    verdict        whether a step fits, as one line
    step_lines     the loss and the time of a step
    text           plain text, and the lines of totals that all kinds of output share
    diff_text      the plain text of a diff
    serving_text   a serving workload, and how much of it fits, as text
    graph_text     a graph as a table
    terminal       tables and colours for rich, fitted to a width
"""

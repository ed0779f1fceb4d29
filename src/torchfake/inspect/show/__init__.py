"""Records are drawn: as text, in a terminal, as HTML, as figures, as a page.

Input: a record of what was found. Output: text, what rich prints, HTML, plotly figures, an HTML
file. Invariant: all of them are made from the same rows and lines; none is made before it is asked
for, and rich and plotly are imported only then.

In reading order:

    headline       the first line about a model
    register       has the files below imported when a record is first shown
    summary_table  the rows of a summary's tree, which text, terminal and HTML share
    verdict        the answer to whether it fits, as one line
    text           plain text, and the lines of totals that all kinds share
    diff_text      the plain text of a diff
    terminal       tables and colours for rich, fitted to a width
    html           fragments for notebooks, without scripts
    figures        the same with plotly, for notebooks
    drawing        what figures draw: icicles, and bytes held moment by moment
    svg            figures as SVG
    page           records as one HTML page: the answer first, then figures and tables
    page_style     its style and script
    report         the function that writes such a page
"""

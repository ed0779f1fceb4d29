"""Records as HTML, SVG, plotly figures and pages.

Input: a record of what was found. Output: fragments of HTML, figures, files. Invariant: rows and
lines are those of ``show``; figures need no script but plotly's, which is imported when one is
asked for.

In reading order:

    html            fragments for notebooks, without scripts
    drawing         what figures draw: icicles, and bytes held moment by moment
    svg             figures as SVG
    plotly_figures  the same with plotly, for notebooks
    layers          boxes in rows, and lines around them
    frames          where the boxes of a graph are, frame in frame
    graph_svg       a graph of modules as SVG
    graph_dot       the same in the language of Graphviz
    page            records as one HTML page: the answer first, then figures and tables
    page_style      its style and script
    report          the public function that writes such a page
"""

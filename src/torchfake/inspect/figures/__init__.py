"""Records as HTML, SVG, plotly figures and pages.

Input: a record. Output: HTML fragments, figures, files. Invariant: rows and lines are those of
``show``; only plotly figures need a script, and plotly is imported when one is requested.

In reading order:

    html            fragments for notebooks, without scripts
    drawing         the data of figures: icicles, and bytes held over time
    svg             figures as SVG
    plotly_figures  figures with plotly, for notebooks
    layers          a layered layout: boxes in rows, and lines around them
    frames          the layout of a graph with nested frames
    graph_svg       a graph of modules as SVG
    graph_dot       a graph of modules in the DOT language
    page            records as one HTML page: the answer first, then figures and tables
    report          the public function that writes a page

``page.css`` is the style of a page, ``page.js`` its script: filters, a graph that folds, tooltips.
"""

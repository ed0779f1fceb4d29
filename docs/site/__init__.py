"""The documentation as a site: ``nox -s site`` builds it, checks its links, and opens pages.

    assemble    the pages of docs/, the notebooks and the reference, as sources for Sphinx
    reference   the pages that are generated from docstrings and from the command line's options
    charts      the figures of the page "Figures", drawn from tables of the other pages
    conf        Sphinx's settings
    build       runs Sphinx, then looks every link and anchor up in what it has written
    browse      opens pages of it in headless Chromium

Sphinx builds from a copy, so that the pages of docs/ read as they are on GitHub too, where links
between files are relative paths.
"""

"""Other people's libraries on fakes and on deferred modules, as their users call them.

One folder for each kind of library, with the versions that were tried in its requirements.txt, and
one file for each library, or for a subject of one: build, load, run, train a step, deferred equal
to eager. A file whose library is not installed is not collected; ``nox -s ecosystem`` installs
them all, and fails for what is missing.
"""

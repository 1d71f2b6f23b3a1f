"""One function a figure: tidy rows in, matplotlib ``Figure`` out; the rows and the finding of a figure stand beside it.

``style`` is the one style file, ``reported`` what the paper says where a figure shows it. Every rows function returns a
table with an ``evidence`` column, and every figure function refuses one that :func:`c3lib.results.publishable` refuses.
"""

"""Experiments on a GPU: what is measured, in which order, and how a run that was cut short goes on.

``journal`` keeps finished rows, ``rounds`` shuffles arms and repeats them, ``regions`` are the experiments made of
single regions, ``suite`` the strategies over a suite, ``energy`` joules, ``premise`` hardware counters; ``run`` is
``c3 measure``.
"""

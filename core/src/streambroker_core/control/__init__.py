"""Control tuples and the operators that stand on aligned windows.

A *control tuple* is a user's record that travels with the data. An *operator* runs once per bucket
and window: it is given rows in order and control tuples at their places, and hands out rows and
control tuples. Nothing here knows Spark, a clock or a thread.

``tuples``, ``payloads``, ``envelope`` and ``cutting`` do not import Arrow, so that a broker or an
agent's planning can read control tuples without it. ``operator`` is the contract, ``aligned`` runs
a window.
"""

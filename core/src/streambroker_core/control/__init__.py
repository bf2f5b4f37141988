"""Control tuples, and operators that run on aligned windows.

A *control tuple* is a user's record that travels with the data. An *operator* runs once per bucket
and window. It receives rows in order and control tuples at their positions, and emits both. Nothing
here uses Spark, a clock or a thread.

``tuples`` does not import Arrow, so a broker or an agent's planner can read control tuples without
it. ``operators.operator`` is the contract, ``runtime.runner`` runs a window.
"""

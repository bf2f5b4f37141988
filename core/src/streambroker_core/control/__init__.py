"""Control tuples and the operators that stand on aligned windows.

A *control tuple* is a user's record that travels with the data. An *operator* runs once per bucket
and window: it is given rows in order and control tuples at their places, and hands out rows and
control tuples. Nothing here knows Spark, a clock or a thread.

Modules that need Arrow import it themselves; this page, ``tuples`` and ``operator`` do not, so
that a broker can read a control tuple without it.
"""

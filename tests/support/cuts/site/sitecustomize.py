"""Makes the steps of the protocol places where a process can be stopped; see support.cuts.points.

Python imports this file at its start where its folder is on the path. So what is cut are the
product's own processes, started by their own commands.
"""

import os

if os.environ.get("STREAMBROKER_CUTS"):
    from support.cuts import points as cut_points

    cut_points.install()

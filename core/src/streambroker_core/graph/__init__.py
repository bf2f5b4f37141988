"""Graph of jobs: who exports to whom, folded and cut to a limit of elements.

A question selects jobs of a `JobGraph`; the answer never has more nodes and edges than its limit.
"""

from streambroker_core.graph.answer import MAX_ELEMENTS, Answer, Edge, Node, Question, answer
from streambroker_core.graph.job_graph import Job, JobGraph, JobKey, build_graph
from streambroker_core.graph.search import read_match

__all__ = [
    "MAX_ELEMENTS",
    "Answer",
    "Edge",
    "Job",
    "JobGraph",
    "JobKey",
    "Node",
    "Question",
    "answer",
    "build_graph",
    "read_match",
]

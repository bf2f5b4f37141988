"""Programs of pages of the documents: what a reader copies, at the places of a test."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pe_agent.spark.local_session import CONF, SMALL

HOW_TO = Path(__file__).parents[3] / "docs/how-to"
_PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code(page: str, words: str, places: Mapping[str, str]) -> str:
    """Return the one block of a how-to page that has these words.

    Addresses and paths of the page are replaced by ``places``.
    """
    blocks = _PYTHON.findall((HOW_TO / f"{page}.md").read_text())
    (found,) = [str(block) for block in blocks if words in block]
    for there, here in places.items():
        found = found.replace(there, here)
    return found


def submit_arguments(jars: Sequence[str] = ()) -> str:
    """Return what ``PYSPARK_SUBMIT_ARGS`` has to be for a program of a page on this machine."""
    conf = {**CONF, **SMALL, "spark.master": "local[2]", "spark.driver.memory": "700m"}
    options = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in conf.items()]
    return " ".join([*options, *(["--jars", ",".join(jars)] if jars else []), "pyspark-shell"])

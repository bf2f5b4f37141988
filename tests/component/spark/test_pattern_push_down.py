"""What is told of rows that no rule has to see, and where they cannot be left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pe_agent import aligned
from pe_agent.aligned import AlignedError, ControlFile
from pe_agent.cep import pattern_processors
from support.pattern_spark import Given
from support.session import Session

DDL = "t timestamp, n string, user string"
RULE = {
    "id": "r",
    "version": 1,
    "pattern": {
        "stages": [
            {"name": "a", "where": 'n == "A"'},
            {"name": "b", "where": 'n == "B"', "join": "followed_by"},
        ]
    },
}


def test_what_is_pushed_down_is_told_and_what_cannot_be_is_refused(
    jobs: Session, tmp_path: Path
) -> None:
    importer = jobs.pe("alerts")

    def relevance(**settings: Any) -> str:
        stream = importer.subscribe("in", 'kind == "a"', control=True, schema=DDL)
        given = {"key": "user", "event_time": "t", "watermark": "0 seconds", **settings}
        made = pattern_processors(
            stream, Given([RULE]), control=tmp_path / f"{len(settings)}", **given
        )
        made.processors.close()
        return made.processors.relevance.why

    assert relevance() == "push_down was not asked for"
    assert "copied" in relevance(push_down=True, selectors=["n"])
    assert "windows end" in relevance(push_down=True, event_time=None, watermark=None)
    frame = jobs.spark.readStream.schema(DDL).parquet(str(tmp_path))
    discoverer = Given([])
    with pytest.raises(AlignedError, match="the stream of one import"):
        pattern_processors(
            aligned.stream(frame), discoverer, control=tmp_path / "rules", push_down=True
        )
    assert ControlFile(tmp_path / "rules").tuples() == []

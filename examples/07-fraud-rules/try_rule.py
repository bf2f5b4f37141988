"""Run a rule over stored payments, before it goes live: `python try_rule.py FILE`."""

import json
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import yaml

from streambroker.patterns import dry_run

lines = [line for file in sorted(Path("payments").glob("*.json")) for line in file.open()]
rows = [json.loads(line) for line in lines]
for row in rows:
    row["at"] = datetime.fromisoformat(row["at"])

rule = yaml.safe_load(Path(sys.argv[1]).read_text())
found = dry_run(pa.Table.from_pylist(rows), rule, event_time="at")
for key, match in found.matches:
    print(*key, {stage: [e.row["amount"] for e in taken] for stage, taken in match.events.items()})
print(f"{len(rows)} payments, {len(found.matches)} matches")

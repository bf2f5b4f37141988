"""Put rows into a stream's folder: `python put.py rates '{"currency": "USD", "rate": 0.9}'`.

Each argument after the folder is a row in JSON. All rows of a call are one file, which appears
whole.
"""

import json
import sys
from pathlib import Path

folder, rows = Path(sys.argv[1]), [json.loads(text) for text in sys.argv[2:]]
folder.mkdir(exist_ok=True)
number = len(list(folder.glob("*.json")))
hidden = folder / f".{number:04}.json"
hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
hidden.rename(folder / f"{number:04}.json")
print(f"{folder}: {len(rows)} rows")

"""What the agent tells the broker of its readers, for ``streambroker top``.

Figures for people: nothing waits for them and nothing depends on them. They are sent by a
thread of their own, so a broker that is slow at taking them never delays a poll.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streambroker_core.model import port_of

log = logging.getLogger("pe_agent")

AGAIN_SECONDS = 30.0
SPACING_SECONDS = 1.0
"""Between two reports at least, however much there is to tell."""
LIMIT = 60_000
"""Bytes of a report; the broker takes 64 KiB."""
DAMAGED = 10
"""Damaged segments that are named."""
WHY = 200
"""Characters of why a fellow does not answer."""
_READERS = (1_000, 300, 100, 30, 10, 0)
_RECEIVED = ("lagEpochs", "duplicates", "successors")
_AS_THEY_ARE = (
    "lagRows",
    "congestion",
    "sentRows",
    "sentBytes",
    "plannedSince",
    "releasedPlans",
)


def report_of(status: Mapping[str, Any], limit: int = LIMIT) -> dict[str, Any]:
    """Return the report of an agent's status.

    Args:
        status: as the agent's action ``status`` returns it.
        limit: bytes of the report as JSON; readers are left out until it fits, those that
            are away first, side inputs for which least rows wait, and rules on which least time
            was spent.
    """
    found: dict[str, Any] = {}
    for most in _READERS:
        found = {
            "exports": {
                port_of(key): _export(export, most) for key, export in status["exports"].items()
            },
            "imports": _imports(status["imports"]["readers"], most),
            "fellows": _fellows(status.get("fellows", {})),
            **({"sides": _sides(status["sides"], most)} if status.get("sides") else {}),
            **_rules(status, most),
            **({"patterns": status["patterns"]} if "patterns" in status else {}),
        }
        if len(json.dumps(found)) <= limit:
            break
    return found


def _sides(sides: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return side inputs, those that most rows wait for first."""
    return sorted(sides, key=lambda side: -side["waitingRows"])[:most]


def _rules(status: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return figures of rules, those that took most time first, and operators that wait."""
    figures = sorted(status.get("ruleFigures", ()), key=lambda one: -one["nanoseconds"])[:most]
    waiting = [one for one in status.get("ruleWaiting", ()) if one["rows"]]
    waiting = sorted(waiting, key=lambda one: -one["rows"])[:most]
    told = {"ruleFigures": figures, "ruleWaiting": waiting}
    return {name: each for name, each in told.items() if each}


def _fellows(fellows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "pe": pe,
            "active": fellow["active"],
            "away": None if fellow["away"] is None else fellow["away"][:WHY],
        }
        for pe, fellow in sorted(fellows.items())
    ]


def _export(export: Mapping[str, Any], most: int) -> dict[str, Any]:
    streams = export["streams"].values()
    readers = [_reader(id_, reader) for id_, reader in export["readers"].items()]
    readers.sort(key=lambda r: (not r["alive"], -r["lagBytes"]))
    return {
        "streams": len(streams),
        "epochs": sum(s["retained"] for s in streams),
        "bytes": sum(s["bytes"] for s in streams),
        "rows": sum(s["rows"] for s in streams),
        "ended": export["ended"],
        "held": export["held"],
        "limit": export["limit"],
        "waitingFor": list(dict.fromkeys(export["waiting_for"]))[:most],
        "waitingSince": export["waitingSince"],
        "waitedSeconds": int(export["waitedSeconds"]),
        "gaps": export["gaps"],
        "damaged": export["damaged"][:DAMAGED],
        "readers": readers[:most],
    }


def shown(reader: str) -> str:
    """Return a name for a reader that tells it from others, and is not its id.

    Whoever knows the id reads what it has planned; who may read a report is another matter.
    """
    return hashlib.sha256(reader.encode()).hexdigest()[:16]


def _reader(id_: str, reader: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "import": reader["import"],
        "reader": shown(id_),
        "policy": reader["policy"],
        "alive": reader["alive"],
        "lagEpochs": reader["lag"][0],
        "lagBytes": reader["lag"][1],
        "delivered": reader["delivered"],
        "filtered": reader["filtered"],
        "droppedRows": reader["dropped"][1],
        "lostEpochs": reader["lost"][0],
        "lostRows": reader["lost"][1],
        "duplicateRows": reader["duplicates"][1],
        "lagSeconds": int(reader["lagSeconds"]),
        "blockedSeconds": int(reader["blockedSeconds"]),
        **{name: reader[name] for name in _AS_THEY_ARE},
    }


def _imports(readers: Mapping[str, Mapping[str, Any]], most: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ordered = sorted(readers.items(), key=lambda item: not item[1]["alive"])
    for id_, reader in ordered[:most]:
        pinned = reader["pinned"]
        port = found.setdefault(port_of(reader["import"]), {"readers": []})
        port["readers"].append(
            {
                "reader": shown(id_),
                **{name: reader[name] for name in _RECEIVED},
                "alive": reader["alive"],
                "filter": pinned.get("filter"),
                "generation": pinned.get("generation"),
                "refused": reader["refused"],
                "dropped": reader["dropped"],
                "lost": reader["lost"],
            }
        )
    return found


class Reporter:
    """Sends reports: one after the first poll, then as often as the broker says.

    A report that fails is forgotten; the next follows after the next poll.

    Args:
        status: the agent's status.
        send: puts a report to the broker and returns its answer's body.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        send: Callable[[dict[str, Any]], Any],
    ) -> None:
        self._status = status
        self._send = send
        self._polled = threading.Event()
        self._closed = threading.Event()
        self._urged = threading.Event()

    def start(self) -> None:
        """Begin; nothing is sent before the first poll."""
        threading.Thread(target=self._run, daemon=True, name="broker reports").start()

    def polled(self) -> None:
        """The broker answered a poll."""
        self._polled.set()

    def urge(self) -> None:
        """Report soon: there is something that people wait for."""
        self._urged.set()

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._polled.set()
        self._urged.set()

    def _run(self) -> None:
        while self._polled.wait() and not self._closed.is_set():
            pause = self.report()
            if self._urged.wait(pause):
                self._urged.clear()
                self._closed.wait(min(pause, SPACING_SECONDS))

    def report(self) -> float:
        """Send one report; return after how many seconds the next is due."""
        try:
            answer = self._send(report_of(self._status()))
            return min(AGAIN_SECONDS, max(0.5, float(answer["again"])))
        except Exception as error:
            # Whatever it was: figures for people must not disturb anything.
            log.debug("report not taken: %s", error)
            self._polled.clear()
            return AGAIN_SECONDS if getattr(error, "status", 0) else 0.5

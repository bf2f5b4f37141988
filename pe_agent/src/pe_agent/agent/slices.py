"""Batches cut into slices: plans registered again, and blocks divided among tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe_agent.agent.import_state import ImportState
from pe_agent.agent.peers import PLAN_SECONDS, READER_LEASE
from pe_agent.agent.readers import OwnReader
from pe_agent.client import AgentClient
from pe_agent.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.offset import Offset, Piece, cut, ranges


class Slices(ImportState):
    """What Spark's ``partitions`` and lost tasks ask."""

    def slices(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``partitions``: register the plan of a batch again and cut it into slices.

        Args:
            request: ``import``, ``session``, ``start``, ``end`` (offsets).

        Returns:
            ``{"slices": […]}``, each a ticket with its address, or ``{"busy": …}``.

        Raises:
            AgentUnreachableError: an exporter is away; the caller tries again.
            DataLossError: planned epochs are gone.
        """
        start, end = Offset.decode(request["start"]), Offset.decode(request["end"])
        claimed = self._claim(request, str(end.reader))
        if isinstance(claimed, dict):
            return claimed
        wanted = ranges(start, end)
        slices: list[dict[str, Any]] = []
        by_export = self._by_export(claimed, end, wanted)
        claimed.finished -= set(by_export)
        for export, streams in sorted(by_export.items()):
            slices += self._slices_of(claimed, export, streams, start, end, wanted)
        return {"slices": slices}

    def _by_export(
        self, reader: OwnReader, end: Offset, wanted: Mapping[str, Any]
    ) -> dict[str, list[str]]:
        """Group streams by export; a stream we do not know is looked for at all our exporters."""
        unknown = [s for s in wanted if s not in reader.homes]
        if unknown:
            self._look_for(reader, unknown)
        result: dict[str, list[str]] = {}
        for stream in wanted:
            if stream not in reader.homes:
                raise AgentUnreachableError(
                    f"no exporter that answers has stream {stream}, which the checkpoint plans to"
                    f" read (exports read so far: {', '.join(end.last) or 'none'})."
                )
            result.setdefault(reader.homes[stream][0], []).append(stream)
        return result

    def _look_for(self, reader: OwnReader, streams: list[str]) -> None:
        port = reader.import_.rpartition("/")[2]
        import_ = self._routes.imported(port)
        for route in import_.routes if import_ else ():
            heads = self.peers.heads(str(route.export)) or {}
            found = {s: (str(route.export), str(route.location)) for s in streams if s in heads}
            self.readers.remember(reader, found)

    def _slices_of(
        self,
        reader: OwnReader,
        export: str,
        streams: list[str],
        start: Offset,
        end: Offset,
        wanted: Mapping[str, tuple[int, int]],
    ) -> list[dict[str, Any]]:
        location, capability = self._route_to(reader, export, streams[0])
        answer = _replan(
            location,
            timeout=PLAN_SECONDS,
            export=export,
            reader=reader.id,
            capability=capability,
            lease=READER_LEASE,
            **self._positions(reader, export, start),
            ranges={s: list(wanted[s]) for s in streams},
            filter=end.filter,
            columns=None if end.columns is None else list(end.columns),
            **{"import": reader.import_},
        )
        common = {
            "location": location,
            "export": export,
            "reader": reader.id,
            "import": reader.import_,
            "filter": end.filter,
            "columns": None if end.columns is None else list(end.columns),
        }
        at: list[dict[str, str]] = [{}] + [
            {"location": one["location"], "agent": one["pe"], "grant": one["grant"]}
            for one in answer.get("agents", ())
        ]
        return [
            {**common, **at[agent], "stream": stream, "pieces": [_piece(p) for p in pieces]}
            for stream, epochs in answer["blocks"].items()
            for agent, sizes in _by_agent(epochs).items()
            for pieces in cut(sizes)
        ]

    def where(self, export: str, stream: str, reader: str, agent: str | None = None) -> str:
        """Return the present address of an export's agent, for a task that has lost it.

        Args:
            export: the export.
            stream: the stream that is read.
            reader: the reader.
            agent: PE of the fellow that has the blocks; None for the export's own agent.

        Raises:
            AgentUnreachableError: the export's own agent is away, too, and was to be asked.
        """
        own = self.readers[reader]
        location, capability = self._route_to(own, export, stream)
        if agent is None:
            return location
        body = {"export": export, "reader": reader, "import": own.import_, "pe": agent}
        told = AgentClient(location).call(
            "peer.where", timeout=PLAN_SECONDS, capability=capability, **body
        )
        return str(told["location"])


def _replan(location: str, **body: Any) -> dict[str, Any]:
    """Let an exporter's agent register a plan; only a loss is final, all else may pass."""
    try:
        return AgentClient(location).call("peer.replan", **body)
    except AgentRefusedError as error:
        if error.code == "DataLoss":
            raise
        raise AgentUnreachableError(f"{error.code}: {error}") from error


def _piece(piece: Piece) -> list[int]:
    return [piece.epoch, piece.first, piece.last]


def _by_agent(epochs: Mapping[str, list[list[int]]]) -> dict[int, dict[int, list[int]]]:
    """Return the bytes of blocks by the agent that has them, 0 for the exporter's own.

    What is read at an agent counts the blocks there, so each agent has slices of its own.
    """
    result: dict[int, dict[int, list[int]]] = {}
    for number, blocks in epochs.items():
        for _, size, *agent in blocks:
            result.setdefault(agent[0] if agent else 0, {}).setdefault(int(number), []).append(size)
    return dict(sorted(result.items()))

"""Check of a publisher's columns against those published last, before anything is staged."""

from __future__ import annotations

import logging

from pe_agent.agent.exports.export_state import ExportState
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.schema import Schema, SchemaPolicy, parse_ddl
from streambroker_core.model.schema_changes import SchemaChange, compare_schemas

log = logging.getLogger("pe_agent")

_MEANING = {
    "backward": "allows to add columns and to widen types",
    "forward": "allows to add columns, and to remove or narrow what no importer reads",
    "full": "allows to add columns, and to remove what no importer reads",
}


class SchemaIncompatibleError(StreambrokerError):
    """The export's schema policy does not allow the new columns; nothing was declared or staged."""

    code = "SchemaIncompatible"


def check_columns(state: ExportState, after: Schema, policy: SchemaPolicy) -> None:
    """Compare new columns with those of the newest stream; log importers that have to restart.

    Raises:
        SchemaIncompatibleError: the policy does not allow the change, or an importer reads a
            column that is removed.
    """
    with state.lock:
        stream = next(reversed(state.streams.values()), None)
        if stream is None or not state.ledger.streams[stream.id].next:
            return
        before = parse_ddl(stream.versions.published(state.ledger.streams[stream.id].next).ddl)
        change = compare_schemas(before, after)
        readers = _find_broken(state, before, change)
    refused = change.refused_by(policy)
    if policy != "none" and readers and not refused.describe():
        refused = SchemaChange(removed=change.removed)
    names = ", ".join(readers)
    if refused.describe():
        broken = f" Imports that would break: {names}." if readers else ""
        raise SchemaIncompatibleError(
            f"the columns of export {state.key} may not change like this: {refused.describe()}."
            f"{broken} Its schemaPolicy is {policy}, which {_MEANING[policy]}. Keep the columns,"
            " publish under another port, or set schema_policy='none' with redeclare=True: then a"
            " new stream begins, and importers that need the old columns read no more."
        )
    if readers:
        log.warning(
            "export %s: %s. The queries of these Imports stop before rows of that, until they are"
            " started again with the new columns: %s",
            state.key,
            change.describe(),
            names,
        )


def _find_broken(state: ExportState, before: Schema, change: SchemaChange) -> list[str]:
    """Return the Imports with a reader that cannot read rows after the change."""
    exported = {c.name: c for c in before}
    broken = set[str]()
    for reader in state.ledger.readers.values():
        ddl = state.deliveries.wanted.get(reader.id)
        names = state.deliveries.for_reader(reader.id).columns or exported
        wanted = parse_ddl(ddl) if ddl else tuple(exported[n] for n in names if n in exported)
        if reader.routed and not reader.once and change.breaks(wanted):
            broken.add(reader.import_)
    return sorted(broken)

"""Check of a publisher's columns against those published last, before anything is staged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streambroker_core.errors import StreambrokerError
from streambroker_core.matching.decide import filter_problem
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader of an export needs.

    Attributes:
        columns: columns as DDL; None if unknown, then their ``names`` are used.
        names: names of its columns, None for all.
    """

    import_: str
    columns: str | None
    names: Sequence[str] | None
    filter: str | None


def check_columns(
    export: str,
    policy: SchemaPolicy,
    before: Schema,
    after: Schema,
    readers: Iterable[Wanted],
) -> None:
    """Compare new columns with those published last; log importers that have to restart.

    Raises:
        SchemaIncompatibleError: the policy does not allow the change, or an importer reads a
            column that is removed.
    """
    change = compare_schemas(before, after)
    broken = sorted({r.import_ for r in readers if _is_broken(r, before, after, change)})
    refused = change.refused_by(policy)
    if policy != "none" and broken and not refused.describe():
        refused = SchemaChange(removed=change.removed)
    names = ", ".join(broken)
    if refused.describe():
        would_break = f" Imports that would break: {names}." if broken else ""
        raise SchemaIncompatibleError(
            f"the columns of export {export} may not change like this: {refused.describe()}."
            f"{would_break} Its schemaPolicy is {policy}, which {_MEANING[policy]}. Keep the"
            " columns, publish under another port, or set schema_policy='none' with"
            " redeclare=True: then a new stream begins, and importers that need the old columns"
            " read no more."
        )
    if broken:
        log.warning(
            "export %s: %s. The queries of these Imports stop before rows of that, until they are"
            " started again with the new columns: %s",
            export,
            change.describe(),
            names,
        )


def _is_broken(wanted: Wanted, before: Schema, after: Schema, change: SchemaChange) -> bool:
    exported = {c.name: c for c in before}
    names = exported if wanted.names is None else wanted.names
    known = tuple(exported[n] for n in names if n in exported)
    if change.breaks(parse_ddl(wanted.columns) if wanted.columns else known):
        return True
    fits = filter_problem(wanted.filter, before) is None
    return fits and filter_problem(wanted.filter, after) is not None

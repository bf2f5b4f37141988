"""Rules that an offset pins: the position in the rules log, and the filter derived from rules.

Rules apply from the start of a batch, and the filter of its end offset applies to the whole batch.
So one offset pins both, and a replay reads the rows that these rules had to see.
"""

from __future__ import annotations

from dataclasses import replace

from pe_agent.agent.imports.readers import ImportReader
from streambroker_core.cep.rules.push_down import TOO_LONG, narrow_filter
from streambroker_core.ledger.offset import Offset, PinnedRules
from streambroker_core.wire.agent_rpc.reader import ReaderNext, RulesPosition
from streambroker_core.wire.broker.capability import claims_filter
from streambroker_core.wire.broker.view import ImportPort


def hold_back(request: ReaderNext) -> ReaderNext:
    """Return the request changed so that the reader gets nothing for now."""
    return replace(request, limit={}, log=False, rules=None)


def pin_rules(
    reader: ImportReader,
    import_: ImportPort | None,
    end: Offset,
    requested: RulesPosition | None,
) -> Offset:
    """Return an offset with the Import's filter, narrowed by what the rules allow.

    ``requested`` has the reader's rules; None keeps those of ``end``, if any. ``reader.rules``
    records why nothing is narrowed.
    """
    import_filter = end.import_filter if import_ is None else import_.filter
    rules = end.rules
    if requested is not None:
        rules = PinnedRules(log=requested.log, next=requested.next, relevant=requested.relevant)
    if rules is None:
        reader.rules = {}
        return replace(end, filter=import_filter)
    filter_, why = import_filter, requested.why if requested else ""
    if rules.relevant is not None:
        routes = import_.routes if import_ else ()
        forbids = sorted(str(r.export) for r in routes if not claims_filter(r.capability))
        combined = narrow_filter(rules.relevant, import_filter)
        if forbids:
            why = f"{', '.join(forbids)} allows no filter"
        elif combined is None:
            why = f"with the filter of the import, {TOO_LONG}"
        else:
            filter_ = combined
    reader.rules = {
        "next": rules.next,
        "filter": filter_ if filter_ != import_filter else None,
        "why": why,
    }
    return replace(end, filter=filter_, rules=replace(rules, own=import_filter))

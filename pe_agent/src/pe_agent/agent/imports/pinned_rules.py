"""What an offset pins of a reader's rules: how far they are read, and what need not be sent.

Rules hold from the beginning of a batch, and the filter of its end offset holds for all of it. So
both are of one offset, and whoever replays the batch sees the rows that these rules had to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pe_agent.agent.imports.readers import ImportReader
from streambroker_core.cep.rules.push_down import TOO_LONG, narrow_filter
from streambroker_core.ledger.offset import Offset, PinnedRules
from streambroker_core.wire.broker.capability import claims_filter
from streambroker_core.wire.broker.view import ImportPort, ImportRoute


def hold_back(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of a reader that is to get nothing for now."""
    return {**request, "limit": {}, "log": False, "rules": None}


def pin_rules(
    reader: ImportReader,
    import_: ImportPort | None,
    end: Offset,
    requested: Mapping[str, Any] | None,
) -> Offset:
    """Return an offset with the Import's filter, and with what rules let it leave out.

    Args:
        reader: one of our own; it is told why nothing is left out.
        import_: its import; None if it is not known.
        end: the offset so far.
        requested: what the reader says of its rules; None for those of ``end``, if any.
    """
    own = end.import_filter if import_ is None else import_.filter
    rules = end.rules
    if requested is not None:
        rules = PinnedRules(
            log=requested["log"], next=requested["next"], relevant=requested["relevant"]
        )
    if rules is None:
        reader.rules = {}
        return replace(end, filter=own)
    filter_, why = own, str((requested or {}).get("why", ""))
    if rules.relevant is not None:
        forbids = sorted(
            str(r.export) for r in (import_.routes if import_ else ()) if _may_forbid_filter(r)
        )
        both = narrow_filter(rules.relevant, own)
        if forbids:
            why = f"{', '.join(forbids)} allows no filter"
        elif both is None:
            why = f"with the filter of the import, {TOO_LONG}"
        else:
            filter_ = both
    reader.rules = {"next": rules.next, "filter": filter_ if filter_ != own else None, "why": why}
    return replace(end, filter=filter_, rules=replace(rules, own=own))


def _may_forbid_filter(route: ImportRoute) -> bool:
    """Whether an exporter may refuse a filter, as far as is known."""
    return not claims_filter(route.capability)

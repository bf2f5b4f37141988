"""Render lint findings as text."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.diagnose.lint import LintFinding


def render_findings(findings: Sequence[LintFinding], total: int) -> str:
    """Return one line for each finding, and a line with the count.

    `total` also counts findings that are not rendered.
    """
    lines = [
        f"{finding.code}: {finding.resource or 'everywhere'}: {finding.message}"
        for finding in findings
    ]
    if not total:
        return "nothing found"
    count = f"{total} finding{'' if total == 1 else 's'}"
    more = f", {len(findings)} of them shown" if len(findings) < total else ""
    return "\n".join([*lines, f"{count}{more}"])

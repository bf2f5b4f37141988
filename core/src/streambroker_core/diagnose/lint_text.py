"""Findings as lines that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.diagnose.lint import LintFinding


def render_findings(findings: Sequence[LintFinding], total: int) -> str:
    """Return a line for each finding, and one that counts.

    Args:
        findings: those to be shown.
        total: how many there are.
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

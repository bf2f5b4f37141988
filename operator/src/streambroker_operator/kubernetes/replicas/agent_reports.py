"""Reports of agents that change statuses, as a replica receives or relays them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.rule_status import RuleStatusMap
from streambroker_core.wire.reports.schema_status import SchemaStatusMap
from streambroker_core.wire.reports.storage_status import StorageStatusMap


@dataclass(frozen=True, slots=True, kw_only=True)
class _DatedReport:
    """Report with its age in seconds, and with the agent's instance if a replica relayed it."""

    ago_s: float = 0.0
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class ViewReport(_DatedReport):
    """Version of the view that an agent runs; the age is since when it does."""

    version: str


@dataclass(frozen=True, slots=True)
class EndsReport(_DatedReport):
    """Exports that have ended."""

    ends: EndedExports


@dataclass(frozen=True, slots=True)
class DamageReport(_DatedReport):
    """Descriptions of damaged logs, by port."""

    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StorageReport(_DatedReport):
    """Uploads to object storage, by port."""

    storage: StorageStatusMap


@dataclass(frozen=True, slots=True)
class SchemaReport(_DatedReport):
    """Versions of columns, by port."""

    schemas: SchemaStatusMap


@dataclass(frozen=True, slots=True)
class RulesReport:
    """States of a job's rules, and whether the agent has reported further rules before."""

    statuses: RuleStatusMap
    more: bool = False


PortReport: TypeAlias = ViewReport | EndsReport | DamageReport | StorageReport | SchemaReport
AgentReport: TypeAlias = PortReport | RulesReport

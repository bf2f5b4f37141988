"""Exports and jobs as static events of OpenLineage, as https://openlineage.io/docs describes them.

An Export is a dataset and each PE, one Spark application, is a job. Names are those of ports with
``.`` for ``/``. A job's event also has its datasets: an input for each Export that it reads, with
the Imports that read it, and an output for each of its own Exports, with all facets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.model import Export, Import, PeKey, PortKey, Route
from streambroker_core.wire.encoding.canonical import without_none
from streambroker_core.wire.manifests.ports import write_streams

_SPEC = "https://openlineage.io/spec"
_CORE = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/"
_FACETS = {
    "schema": "1-2-0/SchemaDatasetFacet",
    "documentation": "1-1-0/DocumentationDatasetFacet",
    "ownership": "1-0-1/OwnershipDatasetFacet",
    "tags": "1-0-0/TagsDatasetFacet",
    "lifecycleStateChange": "1-0-1/LifecycleStateChangeDatasetFacet",
    "jobType": "2-0-3/JobTypeJobFacet",
}
"""Version and definition of each standard facet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Makes the events, which lack only their time.

    Attributes:
        namespace: of the jobs; that of the datasets is ``streambroker://`` and this name.
        producer: URI of what makes the events.
    """

    namespace: str
    producer: str

    def dataset_event(self, key: PortKey, export: Export | None) -> dict[str, Any]:
        """Return the event of an Export; None if there is none at this port any more."""
        if export is not None:
            return self._event("DatasetEvent", dataset=self._dataset(export))
        gone = self._facet("lifecycleStateChange", lifecycleStateChange="DROP")
        dropped = {**self._name(key), "facets": {"lifecycleStateChange": gone}}
        return self._event("DatasetEvent", dataset=dropped)

    def job_event(
        self,
        pe: PeKey,
        exports: Iterable[Export],
        imports: Iterable[tuple[Import, Iterable[Route]]],
    ) -> dict[str, Any]:
        """Return the event of a PE with its Exports, and its Imports with their routes."""
        inputs: dict[PortKey, list[dict[str, Any]]] = {}
        for import_, routes in imports:
            for route in routes:
                inputs.setdefault(route.export, []).append(_subscription(import_, route))
        kind = self._facet(
            "jobType", processingType="STREAMING", integration="STREAMBROKER", jobType="JOB"
        )
        return self._event(
            "JobEvent",
            job={"namespace": self.namespace, "name": _text(pe), "facets": {"jobType": kind}},
            inputs=[
                {
                    **self._name(key),
                    "inputFacets": {
                        "streambroker_subscription": self._custom("InputDataset", imports=found)
                    },
                }
                for key, found in sorted(inputs.items())
            ],
            outputs=[self._dataset(one) for one in sorted(exports, key=lambda one: one.key)],
        )

    def without_facets(self, event: Mapping[str, Any], former: Collection[str]) -> dict[str, Any]:
        """Return a dataset's event that also deletes the facets that only a former event had."""
        dataset = event["dataset"]
        deleted = {
            name: {"_producer": self.producer, "_schemaURL": _schema_url(name), "_deleted": True}
            for name in former
            if name not in dataset["facets"]
        }
        return {**event, "dataset": {**dataset, "facets": {**deleted, **dataset["facets"]}}}

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"producer": self.producer, "schemaURL": _CORE + kind, **members}

    def _name(self, key: PortKey) -> dict[str, Any]:
        return {"namespace": f"streambroker://{self.namespace}", "name": _text(key)}

    def _dataset(self, export: Export) -> dict[str, Any]:
        entry = export.catalog
        properties = None if export.properties is None else dict(export.properties)
        facets = {
            # A receiver keeps facets that a later event lacks, so that of a drop is replaced.
            "lifecycleStateChange": self._facet(
                "lifecycleStateChange", lifecycleStateChange="CREATE"
            ),
            "streambroker_export": self._custom(
                "Dataset",
                congestionPolicy=export.congestion_policy,
                **without_none(streamId=export.stream_id, properties=properties),
            ),
        }
        if export.schema is not None:
            comments = entry.column_comments
            facets["schema"] = self._facet(
                "schema",
                fields=[
                    without_none(name=one.name, type=one.type, description=comments.get(one.name))
                    for one in export.schema
                ],
            )
        if entry.description is not None:
            facets["documentation"] = self._facet("documentation", description=entry.description)
        if entry.owner is not None:
            facets["ownership"] = self._facet("ownership", owners=[{"name": entry.owner}])
        if entry.tags:
            tags = [{"key": tag, "value": "true", "source": "USER"} for tag in entry.tags]
            facets["tags"] = self._facet("tags", tags=tags)
        return {**self._name(export.key), "facets": facets}

    def _facet(self, name: str, **members: Any) -> dict[str, Any]:
        return {"_producer": self.producer, "_schemaURL": _schema_url(name), **members}

    def _custom(self, entity: str, **members: Any) -> dict[str, Any]:
        """Return a facet of our own, which only has to be a facet by the specification."""
        return {"_producer": self.producer, "_schemaURL": f"{_CORE}{entity}Facet", **members}


def _schema_url(facet: str) -> str:
    version = _FACETS.get(facet)
    if version is None:
        return f"{_CORE}DatasetFacet"
    folder, name = version.split("/")
    return f"{_SPEC}/facets/{folder}/{name}.json#/$defs/{name}"


def _text(key: PeKey | PortKey) -> str:
    return str(key).replace("/", ".")


def _subscription(import_: Import, route: Route) -> dict[str, Any]:
    columns = None if import_.schema is None else [column.name for column in import_.schema]
    return {
        "port": import_.key.port,
        "congestionPolicy": route.policy,
        **without_none(
            subscription=import_.subscription,
            streams=write_streams(import_.streams) or None,
            filter=route.filter,
            columns=columns,
        ),
    }

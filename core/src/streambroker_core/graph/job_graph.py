"""Jobs and their routes at one moment, indexed by job; immutable, so usable in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from streambroker_core.model import Export, Import, PortKey, Properties, Route


class JobKey(NamedTuple):
    """Key of a job; its text is ``namespace/job``."""

    namespace: str
    job: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}"


Links: TypeAlias = Mapping[tuple[JobKey, JobKey], Sequence[Route]]
"""The routes from one job to another, by the keys of both, in order of their ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        application: the application of its first port that has one; empty for none.
        exports: names of its export ports, in order; equal names of several PEs are one each.
        imports: the same of its import ports.
        offers: properties of its exports.
        described: its exports, for searches in what people read about them.
        external: it belongs to another namespace than the graph, which shows it because of a route.
            Nothing else is known of it than the ports of these routes.
    """

    key: JobKey
    application: str = ""
    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    offers: tuple[Properties, ...] = ()
    described: tuple[Export, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    """Jobs and routes.

    Attributes:
        jobs: in order of their keys.
        links: in order of both keys.
        neighbours: jobs with a route to or from a job; a job without one has no entry.
        route_count: number of routes.
    """

    jobs: Mapping[JobKey, Job]
    links: Links
    neighbours: Mapping[JobKey, frozenset[JobKey]]
    route_count: int


@dataclass(slots=True)
class _Ports:
    """Ports of one job while a graph is built."""

    application: str = ""
    exports: set[PortKey] = field(default_factory=set)
    imports: set[PortKey] = field(default_factory=set)
    offers: list[Properties] = field(default_factory=list)
    described: list[Export] = field(default_factory=list)
    external: bool = True


def build_graph(
    exports: Iterable[Export],
    imports: Iterable[Import],
    routes: Iterable[Route],
    namespace: str = "*",
) -> JobGraph:
    """Return the graph of a namespace (``*``: of all) with the routes that touch it.

    `routes` are in order of their ports.
    """
    ports: dict[JobKey, _Ports] = {}
    for export in sorted(_of_namespace(exports, namespace), key=lambda one: one.key):
        found = _own_ports(ports, export)
        found.exports.add(export.key)
        found.described.append(export)
        if export.properties is not None:
            found.offers.append(export.properties)
    for import_ in sorted(_of_namespace(imports, namespace), key=lambda one: one.key):
        _own_ports(ports, import_).imports.add(import_.key)
    links: dict[tuple[JobKey, JobKey], list[Route]] = {}
    for route in routes:
        ends = JobKey(*route.export[:2]), JobKey(*route.import_[:2])
        if namespace in ("*", ends[0].namespace, ends[1].namespace):
            ports.setdefault(ends[0], _Ports()).exports.add(route.export)
            ports.setdefault(ends[1], _Ports()).imports.add(route.import_)
            links.setdefault(ends, []).append(route)
    neighbours: dict[JobKey, set[JobKey]] = {}
    for source, target in links:
        neighbours.setdefault(source, set()).add(target)
        neighbours.setdefault(target, set()).add(source)
    return JobGraph(
        jobs={key: _job(key, ports[key]) for key in sorted(ports)},
        links={ends: links[ends] for ends in sorted(links)},
        neighbours={key: frozenset(found) for key, found in neighbours.items()},
        route_count=sum(map(len, links.values())),
    )


def _of_namespace(resources: Iterable[Export | Import], namespace: str) -> Iterable[Any]:
    return (one for one in resources if namespace in ("*", one.key.namespace))


def _own_ports(ports: dict[JobKey, _Ports], resource: Export | Import) -> _Ports:
    found = ports.setdefault(JobKey(*resource.key[:2]), _Ports())
    found.external = False
    found.application = found.application or resource.application.name or ""
    return found


def _job(key: JobKey, ports: _Ports) -> Job:
    return Job(
        key=key,
        application=ports.application,
        exports=tuple(port.port for port in sorted(ports.exports)),
        imports=tuple(port.port for port in sorted(ports.imports)),
        offers=tuple(ports.offers),
        described=tuple(ports.described),
        external=ports.external,
    )

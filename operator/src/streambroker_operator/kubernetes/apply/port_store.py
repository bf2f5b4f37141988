"""Exports and Imports of a cluster, changed by server-side apply.

Rule 1: what is read comes from the board, which the feed fills; what is changed is
read from the API server first, and applied to that very object at that version.
Rule 2: what manager `streambroker-api` holds is stated whole with every change, so that
nothing of it is lost, and nothing else is touched.
Rule 3: nothing is taken from others unless the caller says so; what others hold is
never taken away.
Rule 4: what is as it should be is not written.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from streambroker_core.board import AgentRegistered, Board, Event
from streambroker_core.diagnose import Proposal
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import (
    Kind,
    PeKey,
    PortKey,
    Resource,
    Rule,
    RuleKey,
    kind_of,
    name_of,
)
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.manifests.ports import read_manifest, read_spec, write_spec
from streambroker_operator.errors import RequestError, StoreError, not_declared, unknown_port
from streambroker_operator.kubernetes.apply import server_side as applying
from streambroker_operator.kubernetes.apply.conflicts import check_others, tag_of
from streambroker_operator.kubernetes.apply.overrides import Overwritten, Steering
from streambroker_operator.kubernetes.apply.patch import (
    Edit,
    application,
    edit_of,
    edited,
    emptying,
    own_part,
    released,
    removal,
    statement,
    without,
)
from streambroker_operator.kubernetes.apply.registrations import Registrations
from streambroker_operator.kubernetes.apply.rule_store import RuleWrites
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
    held_at,
    others,
    own_fields,
)
from streambroker_operator.kubernetes.client.objects import Objects, Place
from streambroker_operator.kubernetes.client.rate_limiter import StatusPace
from streambroker_operator.storage.backend import KnownPe, Stored, StoredRule
from streambroker_operator.storage.responses import Answered
from streambroker_operator.storage.write_options import FREELY, Terms, Touched

MIN_SECRET = 32
"""Bytes of the broker's secret, at least."""
ENTRY = "key"
"""Under which name it stands in the Kubernetes Secret."""


async def read_secret(objects: Objects, namespace: str, name: str, *, make: bool = False) -> bytes:
    """Return the broker's secret from a Kubernetes Secret.

    Args:
        objects: single objects of the API server.
        namespace: of the Secret.
        name: of the Secret.
        make: whether to create it if it is missing. Of several replicas that do, one succeeds,
            and the others read what it made.

    Raises:
        StoreError: there is none, or it is too short.
        RequestError: 503, the API server cannot be asked now; 403, it may not be made.
    """
    document = await objects.read_secret(namespace, name)
    where = f"The Secret {namespace}/{name}"
    if document is None and make:
        made = base64.b64encode(secrets.token_bytes(MIN_SECRET)).decode()
        await objects.make_secret(namespace, name, {ENTRY: made})
        document = await objects.read_secret(namespace, name)
    if document is None:
        raise StoreError(
            f"{where} is not there. Make it, let the broker make it with --make-secret, or name"
            " another with --secret-name."
        )
    text = (document.get("data") or {}).get(ENTRY, "")
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StoreError(f"{where} has a `{ENTRY}` that is not base64.") from error
    if len(found) < MIN_SECRET:
        raise StoreError(
            f"{where} has {len(found)} bytes under `{ENTRY}`; at least {MIN_SECRET} random"
            " ones are needed."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the feed's last word on an object tells besides its spec.

    Attributes:
        agent: the event for the board if it tells of an agent.
        overwritten: what was steered, and somebody else has taken.
    """

    agent: AgentRegistered | None
    overwritten: Overwritten | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One resource as it should be, and how it is to become so."""

    kind: Kind
    place: Place
    resource: Resource
    touched: Touched | None
    terms: Terms
    dry: bool


class KubernetesStore:
    """All that a broker in a cluster has to remember, kept in the cluster.

    Args:
        objects: single objects of the API server.
        board: filled by the feed; what is read is read from it.
        secret: what this broker and all its replicas sign with.
        clock: seconds since 1970.
        pace: how fast statuses may be written; shared with others who write some.

    Attributes:
        ordered: False: the versions of writes are no sequence of their own, the feed is.
        answered: answers given again to repeated requests, by this process alone.
        registrations: where agents are.
        steering: what is steered at run time, as the feed shows it.
    """

    ordered = False

    def __init__(
        self,
        objects: Objects,
        board: Board,
        *,
        secret: bytes,
        clock: Callable[[], float] = time.time,
        pace: StatusPace | None = None,
    ) -> None:
        self._objects = objects
        self._board = board
        self.secret = secret
        self._memory = sqlite3.connect(":memory:", isolation_level=None)
        self.answered = Answered(self._memory, clock)
        self.registrations = Registrations(objects, board, pace)
        self._rules = RuleWrites(objects, board)
        self.steering = Steering()

    def close(self) -> None:
        """Forget what only this process knows."""
        self._memory.close()

    # ---- reading ---------------------------------------------------------

    def get(self, kind: Kind, key: PortKey) -> Stored | None:
        """Return the resource that holds a port."""
        found: Resource | None = (
            self._board.export_at(key) if kind == "Export" else self._board.import_at(key)
        )
        return None if found is None else self._known(found)

    def resources(self, kind: Kind) -> list[Stored]:
        """Return all resources of one kind, rivals included, in order of their ports."""
        found = self._board.exports() if kind == "Export" else self._board.imports()
        return [self._known(resource) for resource in found]

    def each(self, kind: Kind) -> tuple[Stored, ...]:
        """Return all resources of one kind, rivals included, in no order."""
        found: Iterator[Resource] = (
            self._board.each_export() if kind == "Export" else self._board.each_import()
        )
        return tuple(self._known(resource) for resource in found)

    def _known(self, resource: Resource) -> Stored:
        version = self._board.version_of(kind_of(resource), resource.uid)
        return Stored(resource=resource, version=version)

    # ---- changing --------------------------------------------------------

    def load(self) -> Iterable[Event]:
        """Return nothing: the feed fills the board."""
        return ()

    async def write(
        self, proposal: Proposal, *, touched: Touched | None = None, terms: Terms = FREELY
    ) -> list[Stored]:
        """Make changes one after the other; several are tried before the first is made.

        Raises:
            RequestError: as `put` and `delete`; `PartlyMade` where some were made before.
        """
        puts, deletes = proposal.puts, proposal.deletes
        if len(puts) + len(deletes) > 1:
            for resource in puts:
                await self.put(resource, touched=touched, terms=terms, dry=True)
        done: list[Stored] = []
        try:
            for resource in puts:
                stored = await self.put(resource, touched=touched, terms=terms)
                done.append(stored)
            for kind, key, _ in deletes:
                stored = await self.delete(kind, key, terms=terms)
                done.append(stored)
        except RequestError as error:
            if not any(stored.changed for stored in done):
                raise
            raise _partly(done, error) from error
        for stored in done:
            if stored.changed:
                self.answered.claim(stored.version)
        return done

    async def put(
        self,
        resource: Resource,
        *,
        touched: Touched | None = None,
        terms: Terms = FREELY,
        dry: bool = False,
    ) -> Stored:
        """Create a resource, or change the fields that a change is about.

        Args:
            resource: as it should be.
            touched: what of its spec is meant; None for all of it.
            terms: on which this is done.
            dry: whether it is only tried.

        Raises:
            RequestError: 409 `OwnedByOther`, somebody else holds a field; 412 by the terms;
                503, the API server cannot be asked, or the resource changes all the time.
            ManifestError: the outcome could not be read.
        """
        kind, key = kind_of(resource), resource.key
        known = self.get(kind, key)
        name = name_of(resource) if known is None else known.resource.name
        place = Place(kind=kind, namespace=key.namespace, name=name)
        change = _Change(
            kind=kind, place=place, resource=resource, touched=touched, terms=terms, dry=dry
        )

        async def once(live: Document | None) -> Stored:
            return await (self._create(change) if live is None else self._change(change, live))

        return await self._objects.repeated(place, once)

    async def release(self, kind: Kind, key: PortKey, *, terms: Terms = FREELY) -> Stored:
        """Give up all that was changed by REST; what others declare stays or comes back.

        Raises:
            RequestError: 404, there is none; 409 `NotDeclared`, nobody else declares it;
                412 by the terms; 422, what is left would be no resource; 503 as `put`.
        """
        known = self.get(kind, key)
        if known is None:
            raise unknown_port(kind, key)
        place = Place(kind=kind, namespace=key.namespace, name=known.resource.name)

        async def once(live: Document | None) -> Stored:
            terms.check(tag_of(live))
            if live is None:
                raise unknown_port(kind, key)
            if held_at(own_fields(live, API), ("spec",)) is None:
                return _stored(live)
            if not _declared(live):
                raise not_declared(str(place))
            gone = emptying(live, released(live))
            if gone:
                live = await self._objects.merge(place, removal(live, gone), manager=API)
            applied = await self._objects.apply(place, application(live, {}), manager=API)
            return _stored(applied.document, changed=True)

        return await self._objects.repeated(place, once)

    async def delete(self, kind: Kind, key: PortKey, *, terms: Terms = FREELY) -> Stored:
        """Delete the resource of a port; return what it was, as it was known last.

        The deletion's own version is told by the feed alone.

        Raises:
            RequestError: 404, there is none; 412 by the terms; 403, the broker may not; 503 as
                `put`.
        """
        known = self.get(kind, key)
        if known is None:
            raise unknown_port(kind, key)
        place = Place(kind=kind, namespace=key.namespace, name=known.resource.name)
        await applying.delete(self._objects, place, known.resource.uid, terms)
        return replace(known, changed=True)

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, terms: Terms = FREELY
    ) -> StoredRule:
        """Create or change a rule, as `RuleWrites.put` does."""
        return await self._rules.put(rule, touched, terms)

    async def delete_rule(self, key: RuleKey, *, terms: Terms = FREELY) -> StoredRule | None:
        """Delete a rule, as `RuleWrites.delete` does."""
        return await self._rules.delete(key, terms)

    async def _create(self, change: _Change) -> Stored:
        spec, terms = write_spec(change.resource), change.terms
        if change.touched is not None:
            terms.check(None)
            raise unknown_port(change.kind, change.resource.key)
        applied = await applying.make(self._objects, change.place, spec, terms, dry=change.dry)
        return _stored(applied.document, changed=True, created=applied.created)

    async def _change(self, change: _Change, live: Document) -> Stored:
        place, key = change.place, change.resource.key
        _check_port(place, live, key)
        change.terms.check(tag_of(live))
        now = _spec(change.kind, live, key)
        edit = edit_of(now, write_spec(change.resource), change.touched)
        if not edit:
            return _stored(live)
        check_others(place.kind, place.name, live, edit)
        outcome = edited(live.get("spec", {}), edit)
        read_spec(change.kind, outcome, key=key, path="spec")
        return await self._make(change, live, edit, outcome)

    async def _make(self, change: _Change, live: Document, edit: Edit, outcome: Document) -> Stored:
        gone = emptying(live, outcome)
        rest = without(edit, gone)
        stored = _stored(live)
        if rest:
            own = own_part(live).get("spec", {})
            body = application(live, statement(own, rest, outcome))
            document, warnings = await applying.change(
                self._objects, change.place, live, body, change.terms, dry=change.dry
            )
            stored = _stored(document, changed=True, warnings=warnings)
        if gone and not change.dry:
            # Others hold none of it, and the version says that this is still so.
            body = removal(live, gone)
            body["metadata"]["resourceVersion"] = str(stored.version)
            document = await self._objects.merge(change.place, body, manager=API)
            stored = replace(_stored(document, changed=True), warnings=stored.warnings)
        return stored

    # ---- agents ----------------------------------------------------------

    def saw(self, kind: Kind, document: Document) -> Seen:
        """Take in an object as the feed shows it, each time it does."""
        return Seen(
            agent=self.registrations.saw(kind, document),
            overwritten=self.steering.saw(document),
        )

    def gone(self, uid: str) -> None:
        """Take in that an object is gone."""
        self.registrations.gone(uid)
        self.steering.gone(uid)

    def pes(self) -> list[KnownPe]:
        """Return all PEs whose agent is known."""
        return self.registrations.pes()

    def owner(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to; None while to none."""
        return self.registrations.owner(pe)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Remember where a PE's agent is, as `Registrations.register` does."""
        return await self.registrations.register(pe, registration, owner)

    async def announce(self) -> None:
        """Tell resources that came after their agent of it, as `Registrations.announce` does."""
        await self.registrations.announce()

    async def withdraw(self, pe: PeKey) -> int:
        """Forget a PE that has no resource; return the version of that."""
        return self.registrations.withdraw(pe)


def _stored(
    document: Document,
    *,
    changed: bool = False,
    created: bool = False,
    warnings: tuple[str, ...] = (),
) -> Stored:
    return Stored(
        resource=read_manifest(document),
        # What was only tried to be made has none.
        version=int(document["metadata"].get("resourceVersion", 0)),
        created=created,
        changed=changed,
        warnings=warnings,
    )


def _partly(done: list[Stored], error: RequestError) -> RequestError:
    made = [str(stored.resource.key) for stored in done if stored.changed]
    return RequestError(
        error.status,
        "PartlyMade",
        f"{len(made)} changes were made, then one was refused: {error} A cluster has no"
        " transactions: look at what is there, and send the rest again.",
        headers=error.headers,
        facts={"made": made, "refused": error.code},
    )


def _spec(kind: Kind, live: Document, key: PortKey) -> Document:
    """Return an object's spec in our own form; as it stands there if it cannot be read."""
    spec: Document = live.get("spec", {})
    try:
        return write_spec(read_spec(kind, spec, key=key))
    except StreambrokerError:
        return spec


def _check_port(place: Place, live: Document, key: PortKey) -> None:
    """Refuse to change an object that is another port's.

    Raises:
        RequestError: 409 `NameTaken`.
    """
    spec = live.get("spec", {})
    if (spec.get("job"), spec.get("pe", 0), spec.get("port")) == (key.job, key.pe, key.port):
        return
    raise RequestError(
        409,
        "NameTaken",
        f"The name {place.name!r} is that of another {place.kind}, of the port"
        f" {place.namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec.get('port')}. Give {key}"
        " another one, or delete that one first.",
    )


def _declared(live: Document) -> bool:
    """Say whether somebody else holds what makes an object a port's."""
    return any(held_at(holder.fields, ("spec", "port")) is not None for holder in others(live))

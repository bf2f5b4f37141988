"""Kafka, Spark's connector to it, Flink: ``make bench-setup`` fetches, ``make bench`` finds them.

``python peer_jars.py kafka connector`` fetches these folders only, as ``make kafka-jars`` does.
What is fetched stands in ``peer.lock``, each jar with its SHA-256. Maven fetches, from where its
settings say. What does not have the sum is not kept.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LOCK = HERE / "peer.lock"
PLACE = HERE / "peer"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class PeerMissingError(Exception):
    """The peer is not there, or not whole."""

    def __init__(self, why: str, remedy: str = "`make bench-setup` fetches it") -> None:
        super().__init__(f"the peer is missing ({why}): {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of the lock."""

    folder: str
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where it is, once fetched."""
        return PLACE / self.folder / f"{self.artifact}-{self.version}.jar"


def locked() -> list[Jar]:
    """Return the lines of the lock."""
    result = []
    for line in LOCK.read_text().splitlines():
        if line and not line.startswith("#"):
            folder, coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
            result.append(
                Jar(folder=folder, group=group, artifact=artifact, version=version, sha256=sha256)
            )
    return result


def jars(folder: str) -> list[str]:
    """Return the paths of the jars of ``kafka``, the ``connector`` or ``flink``.

    Raises:
        PeerMissingError: one of them is not there.
    """
    paths = [jar.path for jar in locked() if jar.folder == folder]
    for path in paths:
        if not path.exists():
            raise PeerMissingError(f"no {path.relative_to(HERE)}")
    return [str(path) for path in paths]


def _whole(path: Path, jar: Jar) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _order(wanted: list[Jar]) -> str:
    """Return a Maven project that needs these jars and nothing of what they need themselves."""
    head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    itself = "<groupId>bench</groupId><artifactId>peer</artifactId><version>1</version>"
    alone = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    needs = "\n".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions>{alone}</exclusions></dependency>"
        for jar in wanted
    )
    return (
        f"{head}{itself}<packaging>pom</packaging>\n<dependencies>\n{needs}\n</dependencies>"
        "</project>\n"
    )


def fetch(folder: str, wanted: list[Jar]) -> None:
    """Fetch jars into a folder of the peer.

    Raises:
        SystemExit: Maven is not there, failed, or brought something else.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise SystemExit("needs Maven: install it, so that `mvn` is on the path")
    (PLACE / folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE, prefix="fetching-") as place:
        project = Path(place) / "pom.xml"
        project.write_text(_order(wanted))
        command = [maven, "-B", "-q", "-f", str(project), PLUGIN, f"-DoutputDirectory={place}"]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"Maven could not fetch the {folder} jars")
        for jar in wanted:
            came = Path(place) / jar.path.name
            if not _whole(came, jar):
                raise SystemExit(f"{came.name} is not what {LOCK.name} says: refused")
            came.replace(jar.path)


def main(*folders: str) -> None:
    """Fetch what is not there or not whole, of all folders if none is named."""
    every = locked()
    for folder in folders or dict.fromkeys(jar.folder for jar in every):
        wanted = [j for j in every if j.folder == folder and not _whole(j.path, j)]
        if wanted:
            fetch(folder, wanted)
        sys.stdout.write(f"{PLACE.name}/{folder}: whole, {len(wanted)} jars fetched\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

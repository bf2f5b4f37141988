#!/usr/bin/env bash
# Builds the images of the broker and of Spark from their Dockerfiles, without a registry and without an engine, and the
# pause image of a node. Each becomes an archive that a node imports.
#
#   images.sh FOLDER    write broker.tar, spark.tar and pause.tar
#
# DEBIAN_MIRROR names another mirror than debootstrap would take.
#
# The base is a Debian with its Python, in place of python:…-slim. Layers are kept in .kube/images, so that only
# the first build takes minutes; the project's wheels are made anew each time. Needs root.
set -euo pipefail

target=${1:?a folder for the archives}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=$root/.kube/images
python=$root/.venv/bin/python
suite=bookworm
packages=python3,python3-pip,python3-venv,ca-certificates

say() { echo "images: $*" >&2; }

mkdir -p "$cache" "$target"
exec 9>"$cache/.lock"
flock 9
work=$(mktemp -d "$cache/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT

build() {
  buildah --root "$cache/storage" --runroot "$work/run" --storage-driver overlay "$@"
}

base=localhost/streambroker-base:$(echo "$suite $packages" | sha256sum | cut -c1-16)
if ! build inspect --type image "$base" >/dev/null 2>&1; then
  say "making the base, once; about 2 minutes"
  debootstrap --variant=minbase --include="$packages" "$suite" "$work/base" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/debootstrap.log" 2>&1 ||
    { tail -20 "$work/debootstrap.log" >&2; exit 1; }
  # As in Python's own images, pip may install into the one Python that is there.
  rm -rf "$work"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$work"/base/var/cache/apt/archives/*.deb
  container=$(build from scratch)
  build add --quiet "$container" "$work/base" / >/dev/null
  build config --cmd python3 "$container"
  build commit --quiet --rm "$container" "$base" >/dev/null
  rm -rf "$work/base"
fi

# What a build sees is put together here, so that the checkout stays as it is.
context=$work/context
mkdir -p "$context/dist" "$context/docker/spark"
cp -r "$root/requirements" "$root/.dockerignore" "$context"
cp "$root/docker/spark/entrypoint.sh" "$context/docker/spark"
for one in core operator pe_agent pe_agent/streambroker; do
  (cd "$root/$one" && "$python" -m hatchling build -t wheel -d "$context/dist" >/dev/null 2>&1)
done

# pip asks the index that this machine asks, and trusts whom it trusts.
machine=(--volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
[ ! -e /etc/pip.conf ] || machine+=(--volume /etc/pip.conf:/etc/pip.conf:ro)

for one in broker spark; do
  began=$SECONDS
  image=docker.io/streambroker/$one:0.1.0
  build build --quiet --layers --pull-never --isolation chroot --format docker "${machine[@]}" \
    --build-arg "BASE=$base" -f "$root/docker/$one/Dockerfile" -t "$image" "$context" >"$work/$one.log" 2>&1 ||
    { tail -40 "$work/$one.log" >&2; exit 1; }
  container=$(build from --pull-never "$image")
  found=$(build run --user 0 --isolation chroot "$container" -- find / -xdev -path '*-packages/pip')
  [ -z "$found" ] || { say "$one has pip: $found"; exit 1; }
  build rm "$container" >/dev/null
  rm -f "$target/$one.tar"
  build push --quiet "$image" "docker-archive:$target/$one.tar:$image"
  say "$one, $(du -h "$target/$one.tar" | cut -f1), $((SECONDS - began)) s"
done

pause=docker.io/streambroker/pause:0.1.0
(cd "$root/tests/cluster/pause" && GOTOOLCHAIN=local CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/pause" .)
container=$(build from scratch)
build add --quiet "$container" "$work/pause" /pause >/dev/null
build config --entrypoint '["/pause"]' "$container"
build commit --quiet --rm --format docker "$container" "$pause" >/dev/null
rm -f "$target/pause.tar"
build push --quiet "$pause" "docker-archive:$target/pause.tar:$pause"

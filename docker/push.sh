#!/usr/bin/env bash
# Builds the images of the broker and of Spark for amd64 and arm64 and pushes them to REGISTRY, with their provenance
# and contents (SPDX). `make push-images` runs it; dist/ has the wheels. Bases are given with a digest, since a release
# states what it was built from. The digests of the images go to the file GITHUB_OUTPUT, if that is set.
set -euo pipefail
cd "$(dirname "$0")/.."

refuse() {
  echo "push-images: $1" >&2
  exit 2
}

[ -n "${REGISTRY:-}" ] || refuse "Set REGISTRY to where images go, for instance registry.example.com/streams."
[ -n "${REPOSITORY:-}" ] || refuse "Set REPOSITORY to the address of the source, for instance https://git.example.com/streams."
for name in BROKER_BASE SPARK_BASE; do
  case ${!name:-} in
    *@sha256:*) ;;
    *) refuse "Set $name to an image of Python with its digest, for instance python:3.12-slim-bookworm@sha256:…." ;;
  esac
done
ls dist/*.whl >/dev/null 2>&1 || refuse "There are no wheels in dist/. Run make dist first."

version=$(awk '$1 == "appVersion:" {print $2}' charts/streambroker/Chart.yaml)
if [ -n "${REGISTRY_TOKEN:-}" ]; then
  docker login "${REGISTRY%%/*}" --username "${REGISTRY_USER:-}" --password-stdin <<<"$REGISTRY_TOKEN"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for one in broker spark; do
  base=$(echo "$one" | tr '[:lower:]' '[:upper:]')_BASE
  docker buildx build --push --platform linux/amd64,linux/arm64 --provenance mode=max --sbom true \
    --build-arg "BASE=${!base}" --build-arg "VERSION=$version" --build-arg "SOURCE=$REPOSITORY" \
    --build-arg "REVISION=$(git rev-parse HEAD)" --metadata-file "$work/$one" \
    --file "docker/$one/Dockerfile" --tag "$REGISTRY/streambroker/$one:$version" .
  digest=$(sed -n 's/.*"containerimage.digest": "\(sha256:[0-9a-f]*\)".*/\1/p' "$work/$one")
  echo "$REGISTRY/streambroker/$one:$version@$digest"
  [ -z "${GITHUB_OUTPUT:-}" ] || echo "$one=$digest" >>"$GITHUB_OUTPUT"
done

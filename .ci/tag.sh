#!/usr/bin/env bash
# Checks that a tag names this release: tag.sh v1.2.0. The version goes to the file GITHUB_OUTPUT, if that is set.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(awk '$1 == "appVersion:" {print $2}' charts/streambroker/Chart.yaml)
if [ "${1:-}" != "v$version" ]; then
  echo "release-tag: The tag is \"${1:-}\", and this is version $version. Set TAG=v$version, or change the version." >&2
  exit 1
fi
if ! grep -Eq "^## ${version//./\\.} - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md; then
  echo "release-tag: CHANGELOG.md has no section \"## $version - DATE\". Give \"Unreleased\" this name." >&2
  exit 1
fi
[ -z "${GITHUB_OUTPUT:-}" ] || echo "version=$version" >>"$GITHUB_OUTPUT"

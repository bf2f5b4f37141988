#!/usr/bin/env bash
# Builds versitygw, the S3 server of the tests, into .storage of this checkout, once. server/go.mod has its version.
# What Go downloads and compiles is kept in .storage/go, unless GOMODCACHE and GOCACHE name other folders, and is
# removed after the build.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=$(cd "$here/../../.." && pwd)/.storage
program=${STREAMBROKER_S3_SERVER:-$target/versitygw}

[ ! -x "$program" ] || exit 0
mkdir -p "$target"
if command -v flock >/dev/null; then # the second of two builds waits for the first
  exec 9>"$target/.lock"
  flock 9
  [ ! -x "$program" ] || exit 0
fi
if ! command -v go >/dev/null; then
  echo "storage-server: Go is needed to build versitygw. Install Go 1.25 or newer, or set STREAMBROKER_S3_SERVER to its program." >&2
  exit 1
fi
echo "storage-server: building versitygw into $target: some 4 minutes on 2 cores, 2 GB of disk meanwhile and 0.1 GB afterwards" >&2
caches=$target/go
export GOMODCACHE=${GOMODCACHE:-$caches/mod} GOCACHE=${GOCACHE:-$caches/build} GOTOOLCHAIN=local CGO_ENABLED=0
export GOFLAGS="-mod=readonly -modcacherw" # with -modcacherw the folder can be removed by rm
work=$(mktemp -d "$target/.build-XXXXXX") # the program is moved to its place when it is complete
trap 'rm -rf "$work"' EXIT
(cd "$here/server" && go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/versitygw" \
  github.com/versity/versitygw/cmd/versitygw) 2>&1 | { grep -v "^go: downloading" || true; } >&2
mv "$work/versitygw" "$program"
rm -rf "$caches"

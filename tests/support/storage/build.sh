#!/usr/bin/env bash
# Builds versitygw, the S3 server of the tests, into .storage of this checkout, once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
target=$root/.storage
program=${STREAMBROKER_S3_SERVER:-$target/versitygw}
version=v1.8.0

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
echo "storage-server: building versitygw $version into $target: about 4 minutes on 2 cores, 2 GB of disk meanwhile and 0.1 GB afterwards" >&2
export GOBIN=$target GOMODCACHE=${GOMODCACHE:-$target/go/mod} GOCACHE=${GOCACHE:-$target/go/build} GOFLAGS=-modcacherw
go install "github.com/versity/versitygw/cmd/versitygw@$version"
rm -rf "$target/go"

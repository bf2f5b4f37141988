#!/usr/bin/env bash
# Installs Azurite, which emulates Azure's object storage, into .storage/azurite of this checkout, once.
set -euo pipefail

target=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)/.storage
[ ! -e "$target/azurite" ] || exit 0
if ! command -v npm >/dev/null; then
  echo "storage-emulators: npm is needed to install Azurite. Install Node 20 or newer." >&2
  exit 1
fi
mkdir -p "$target"
work=$(mktemp -d "$target/.npm-XXXXXX") # the folder is moved to its place when it is complete
trap 'rm -rf "$work"' EXIT
# The date stands for a lock file: packages that are newer are not taken.
npm install --prefix "$work" --before=2026-11-01 --ignore-scripts --no-audit --no-fund --loglevel=error azurite@3.37.0
chmod 755 "$work"
mv "$work" "$target/azurite"

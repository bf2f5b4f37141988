#!/usr/bin/env bash
# Fetches the custom resource definitions of Kubeflow's Spark operator with Go, once, into .kube/spark-operator/<version>.
# go.mod pins the version, and Go refuses a module that has not the sum in go.sum.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
module=github.com/kubeflow/spark-operator/v2
version=$(awk -v module=$module '$1 == "require" && $2 == module {print $3}' go.mod)
target=$(cd ../../.. && pwd)/.kube/spark-operator/$version
[ ! -d "$target" ] || exit 0
command -v go >/dev/null || { echo "operator-crds: Go is needed. Install Go 1.24 or newer." >&2; exit 1; }

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
export GOMODCACHE=${GOMODCACHE:-$work/mod} GOTOOLCHAIN=local GOFLAGS=-modcacherw # with it the folder can be removed by rm
go mod download "$module@$version"
mkdir "$work/crds"
cp "$GOMODCACHE/$module@$version"/config/crd/bases/sparkoperator.k8s.io_spark{applications,connects}.yaml "$work/crds/"
chmod 644 "$work/crds"/*
mv "$work/crds" "$target"
echo "operator-crds: fetched $version into $target" >&2

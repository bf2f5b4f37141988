#!/usr/bin/env bash
# Builds from source what the cluster tests run, once, into ~/.cache/streambroker/kube/<version>.
#
#   build.sh api [--if-possible]    kube-apiserver, etcd and kubectl
#   build.sh node                   also kubelet, kube-controller-manager, kube-scheduler, kube-proxy and coredns
#
# What is there already is left alone. Where KUBEBUILDER_ASSETS names a folder, that has to hold the programs and nothing
# is built. With --if-possible, a machine without Go, or a build that fails, is told in a line and is no error: the tests
# then say what is missing, and are skipped, or fail where STREAMBROKER_REQUIRE_CLUSTER=1.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" {print $3} $1 == "k8s.io/kubernetes" {print $2}' "$here/go.mod")
target=${KUBEBUILDER_ASSETS:-$HOME/.cache/streambroker/kube/$version}

programs=(etcd kubectl kube-apiserver)
case ${1:-} in
  api) ;;
  node) programs+=(kube-controller-manager kube-scheduler kube-proxy kubelet coredns) ;;
  *) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac

give_up() {
  echo "kube-assets: $1" >&2
  [ "${2:-}" = --if-possible ] && exit 0
  exit 1
}

look() {
  missing=()
  for program in "${programs[@]}"; do
    [ -x "$target/$program" ] || missing+=("$program")
  done
  [ ${#missing[@]} -gt 0 ] || exit 0
}
look
[ -z "${KUBEBUILDER_ASSETS:-}" ] || give_up "KUBEBUILDER_ASSETS=$target has no ${missing[*]}" "${2:-}"
command -v go >/dev/null || give_up "no Go to build ${missing[*]} with; install Go, or set KUBEBUILDER_ASSETS" "${2:-}"

package_of() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    coredns) echo . ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
  esac
}

minor=${version#v1.}
names=k8s.io/component-base/version
flags="-s -w -X $names.gitVersion=$version -X $names.gitMajor=1 -X $names.gitMinor=${minor%%.*} -X $names.gitTreeState=clean"
mkdir -p "$target"
if command -v flock >/dev/null; then # the second of two builds waits for the first, and finds all done
  exec 9>"$target/.lock"
  flock 9
  look
fi
# Programs are moved into their place whole: a build that is cut leaves none that is half.
work=$(mktemp -d "$target/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "kube-assets: building ${missing[*]} $version into $target, once; about 6 minutes on 2 cores" >&2
for program in "${missing[@]}"; do
  began=$SECONDS
  module=$here
  [ "$program" != coredns ] || module=$here/dns
  (cd "$module" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0 \
    go build -trimpath -buildvcs=false -ldflags "$flags" -o "$work/$program" "$(package_of "$program")") ||
    give_up "building $program failed, see above" "${2:-}"
  mv -f "$work/$program" "$target/$program"
  echo "kube-assets: $program, $((SECONDS - began)) s" >&2
done

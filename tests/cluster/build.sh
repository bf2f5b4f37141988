#!/usr/bin/env bash
# Puts the programs that the cluster tests run into one folder, once.
#
#   build.sh api     kube-apiserver, etcd and kubectl
#   build.sh node    also kubelet, kube-controller-manager, kube-scheduler, kube-proxy and coredns
#
# KUBERNETES names another version than that of go.mod, for instance v1.33.13.
# The folder is .kube/<version> of this checkout, or KUBEBUILDER_ASSETS. Programs that are already there are kept. An etcd and a
# kubectl of this machine are linked if their version fits; all other programs are built from source with Go. What Go
# downloads and compiles is kept in .kube/go, unless GOMODCACHE and GOCACHE name other folders, and is removed after the build.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
pinned=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" {print $3} $1 == "k8s.io/kubernetes" {print $2}' "$here/go.mod")
version=${KUBERNETES:-$pinned}
[[ $version =~ ^v1\.[0-9]+\.[0-9]+$ ]] || { echo "kube-assets: KUBERNETES is $version; it has to be like $pinned" >&2; exit 2; }
target=${KUBEBUILDER_ASSETS:-$root/.kube/$version}

case ${1:-} in
  api) programs=(etcd kubectl kube-apiserver) size="about 6 minutes on 2 cores, 3 GB of disk meanwhile and 0.2 GB afterwards" ;;
  node)
    programs=(etcd kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet coredns)
    size="about 14 minutes on 2 cores, 5 GB of disk meanwhile and 0.6 GB afterwards" ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac

find_missing() {
  missing=()
  for program in "${programs[@]}"; do
    [ -x "$target/$program" ] || missing+=("$program")
  done
  [ ${#missing[@]} -gt 0 ] || exit 0
}

# Links a program of this machine: etcd from 3.5 on, kubectl of the same minor version as the API server or one apart.
link_installed() {
  local minor=${version#v1.} found
  minor=${minor%%.*}
  if found=$(command -v etcd) && "$found" --version | grep -Eq 'etcd Version: 3\.([5-9]|[1-9][0-9])'; then
    [ -x "$target/etcd" ] || ln -s "$found" "$target/etcd"
  fi
  if found=$(command -v kubectl) &&
    "$found" version --client 2>/dev/null | grep -Eq "Client Version: v1\.($((minor - 1))|$minor|$((minor + 1)))\."; then
    [ -x "$target/kubectl" ] || ln -s "$found" "$target/kubectl"
  fi
}

find_missing
mkdir -p "$target"
if command -v flock >/dev/null; then # the second of two builds waits for the first
  exec 9>"$target/.lock"
  flock 9
fi
link_installed
find_missing
if ! command -v go >/dev/null; then
  echo "kube-assets: Go is needed to build ${missing[*]}. Install Go 1.24 or newer, or set KUBEBUILDER_ASSETS to a folder that has them." >&2
  exit 1
fi
echo "kube-assets: building ${missing[*]} $version into $target: $size" >&2

# Makes the module of another version of Kubernetes: what go.mod pins is not for it, so Go chooses.
other_module() {
  sed -n -e '1,/^go /p' -e "s|^\t\(k8s.io/kubernetes\) .*|require \1 $version|p" "$here/go.mod"
  sed -n -e '/^replace (/,/^)/p' "$here/go.mod" | sed "s|v0\..*|v0.${version#v1.}|"
}

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
caches=$root/.kube/go
export GOMODCACHE=${GOMODCACHE:-$caches/mod} GOCACHE=${GOCACHE:-$caches/build} GOTOOLCHAIN=local CGO_ENABLED=0
export GOFLAGS="-modcacherw" # with -modcacherw the folder can be removed by rm
# A program is moved to its place when it is complete, so an interrupted build leaves no broken one.
work=$(mktemp -d "$target/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
kubernetes=$here
if [ "$version" != "$pinned" ]; then
  kubernetes=$work/module
  mkdir "$kubernetes"
  other_module >"$kubernetes/go.mod"
fi
number=0
for program in "${missing[@]}"; do
  began=$SECONDS number=$((number + 1))
  echo "kube-assets: $number of ${#missing[@]}, $program" >&2
  case $program in
    etcd) module=$here ;;
    coredns) module=$here/dns ;;
    *) module=$kubernetes ;;
  esac
  mode=readonly
  [[ $module == "$here"* ]] || mode=mod
  if ! (cd "$module" && go build -mod=$mode -trimpath -buildvcs=false -ldflags "$flags" -o "$work/$program" "$(package_of "$program")") 2>&1 |
    awk '/^go: downloading/ {if (++count % 25 == 0) print "kube-assets: " count " modules downloaded"; next} {print}' >&2; then
    echo "kube-assets: building $program failed, see above" >&2
    exit 1
  fi
  mv -f "$work/$program" "$target/$program"
  echo "kube-assets: $program built in $((SECONDS - began)) s" >&2
done
rm -rf "$caches"

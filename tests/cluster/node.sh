#!/usr/bin/env bash
# A Kubernetes node with its control plane, in namespaces of its own for processes, mounts and network: when it ends, the
# kernel takes away its processes, mounts, interfaces and packet filters. tests/support/clusters/node.py runs it.
#
#   node.sh check    tell in one line what this machine lacks, if anything
#   unshare --mount --pid --fork --kill-child --mount-proc node.sh FOLDER PROGRAMS ADDRESS NAME ARCHIVE…
#
#   FOLDER     where everything is kept: `kubeconfig` is what clients need, `imported` is there once all images are
#   PROGRAMS   what build.sh has built
#   ADDRESS    of the node; the machine gets the address before it
#   NAME       of the machine's interface to the node, and of the cgroup above the pods
#   ARCHIVE    images, that of the pause container first
#
# Ends when one of its programs does, and says which.
set -euo pipefail

if [ "$1" = check ]; then
  missing=()
  need() { # PACKAGE COMMAND…
    local package=$1
    shift
    for command in "$@"; do
      command -v "$command" >/dev/null || { missing+=("$package"); return; }
    done
  }
  need containerd containerd ctr
  need runc runc
  need containernetworking-plugins /usr/lib/cni/bridge
  need conntrack conntrack
  need iptables iptables
  need iproute2 ip
  need openssl openssl
  need util-linux unshare nsenter
  need debootstrap debootstrap
  need buildah buildah
  need golang go
  [ "$(id -u)" = 0 ] || { echo "a node is run by root; or set KUBECONFIG to a cluster that runs pods" >&2; exit 1; }
  [ ${#missing[@]} = 0 ] || { echo "a node needs: apt-get install ${missing[*]}; or set KUBECONFIG to a cluster that runs pods" >&2; exit 1; }
  exit 0
fi

folder=$1 programs=$2 address=$3 name=$4
shift 4
archives=("$@")
before=${address%.*}.$((${address##*.} - 1))
pods=10.244.0.0/24
port=6443

# ---- of its own -------------------------------------------------------------------------------

# Mounts of the node's programs are seen by each other, and not by the machine.
mount --make-rprivate /
mount --make-rshared /
mkdir -p "$folder"/{lib,log,etc,etcd,sysctl,volumes}
mount -t tmpfs tmpfs /run
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log

# kubelet sets these for the whole machine; here it finds them set.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
  file=$folder/sysctl/${setting//[\/=]/-}
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done

# One hierarchy of cgroups, or one for each controller.
hierarchies=(/sys/fs/cgroup/*/)
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || hierarchies=(/sys/fs/cgroup/)
for hierarchy in "${hierarchies[@]}"; do
  mkdir -p "$hierarchy$name"
  # In the first version a group has no processors before it is given some.
  for file in cpuset.cpus cpuset.mems; do
    [ ! -e "$hierarchy$file" ] || cat "$hierarchy$file" >"$hierarchy$name/$file"
  done
  # A group counts as one program among those of the machine; the pods are several.
  [ ! -e "$hierarchy$name/cpu.shares" ] || echo 4096 >"$hierarchy$name/cpu.shares"
done

ip netns add node
ip link add "$name" type veth peer name eth0 netns node
ip address add "$before/30" dev "$name"
ip link set "$name" up
inside() { exec nsenter --net=/run/netns/node -- "$@"; }
(inside ip link set lo up)
(inside ip address add "$address/30" dev eth0)
(inside ip link set eth0 up)
(inside ip route add default via "$before")

# ---- who may what -----------------------------------------------------------------------------

secret() { openssl rand -hex 16; }
umask 077
openssl ecparam -genkey -name prime256v1 -noout -out "$folder/etc/accounts.key"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=kube-apiserver \
  -keyout "$folder/etc/kubelet-client.key" -out "$folder/etc/kubelet-client.crt" 2>/dev/null
: >"$folder/etc/tokens.csv"
account() { # FILE USER GROUP
  local token
  token=$(secret)
  echo "$token,$2,$2,\"$3\"" >>"$folder/etc/tokens.csv"
  cat >"$folder/$1" <<END
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: node, user: it}}]
clusters: [{name: node, cluster: {server: "https://$address:$port", certificate-authority: "$folder/certs/apiserver.crt"}}]
users: [{name: it, user: {token: "$token"}}]
END
}
account kubeconfig admin system:masters
account etc/controllers system:kube-controller-manager ""
account etc/scheduler system:kube-scheduler ""
account etc/proxy system:kube-proxy ""
account etc/kubelet system:node:node0 system:nodes
account etc/dns dns system:masters
umask 022

# ---- programs ---------------------------------------------------------------------------------

declare -A running
run() { # NAME COMMAND…
  local what=$1
  shift
  (inside "$@") >>"$folder/$what.log" 2>&1 &
  running[$!]=$what
}
await() { # WHAT COMMAND…: until it succeeds, three minutes at most
  local what=$1 end=$((SECONDS + 180))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "node: not within three minutes: $what" >&2; exit 1; }
    sleep 0.2
  done
}
kubectl() { "$programs/kubectl" --kubeconfig "$folder/kubeconfig" "$@"; }

run etcd "$programs/etcd" --data-dir="$folder/etcd" --unsafe-no-fsync --log-level=warn

cat >"$folder/etc/containerd.toml" <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/streambroker/pause:0.1.0"
  # Who lacks CAP_SYS_RESOURCE may not lower the score.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/run/cni"
END
mkdir /run/cni
cat >/run/cni/node.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
run containerd containerd --config "$folder/etc/containerd.toml"

run apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
  --cert-dir="$folder/certs" --secure-port=$port --bind-address=0.0.0.0 --advertise-address="$address" \
  --service-cluster-ip-range=10.96.0.0/16 --allow-privileged \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file="$folder/etc/accounts.key" --service-account-signing-key-file="$folder/etc/accounts.key" \
  --token-auth-file="$folder/etc/tokens.csv" --authorization-mode=Node,RBAC \
  --enable-admission-plugins=NodeRestriction --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate="$folder/etc/kubelet-client.crt" --kubelet-client-key="$folder/etc/kubelet-client.key"
await "the API server is ready" kubectl get --raw /readyz

run controllers "$programs/kube-controller-manager" --kubeconfig="$folder/etc/controllers" \
  --use-service-account-credentials --leader-elect=false --root-ca-file="$folder/certs/apiserver.crt" \
  --service-account-private-key-file="$folder/etc/accounts.key"
run scheduler "$programs/kube-scheduler" --kubeconfig="$folder/etc/scheduler" --leader-elect=false

cat >"$folder/etc/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $pods
clientConnection: {kubeconfig: "$folder/etc/proxy"}
hostnameOverride: node0
oomScoreAdj: 0
# They are the machine's, and not for a namespace to set.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
run proxy "$programs/kube-proxy" --config="$folder/etc/proxy.yaml"

cat >"$folder/etc/Corefile" <<END
.:53 {
  errors
  kubernetes cluster.local {
    kubeconfig $folder/etc/dns
  }
}
END
run dns "$programs/coredns" -conf "$folder/etc/Corefile"

await "containerd answers" ctr version
ctr --namespace k8s.io images import "${archives[0]}" >>"$folder/import.log"
cat >"$folder/etc/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$name
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
localStorageCapacityIsolation: false
enforceNodeAllocatable: []
oomScoreAdj: 0
clusterDNS: ["$address"]
clusterDomain: cluster.local
resolvConf: ""
# Reached by the API server and the pods alone.
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
# A disk that is rather full is no reason to refuse pods.
evictionHard: {nodefs.available: 1%, imagefs.available: 1%, memory.available: 100Mi}
imageGCHighThresholdPercent: 100
END
run kubelet "$programs/kubelet" --config="$folder/etc/kubelet.yaml" --kubeconfig="$folder/etc/kubelet" \
  --node-ip="$address" --hostname-override=node0

for archive in "${archives[@]:1}"; do
  ctr --namespace k8s.io images import "$archive" >>"$folder/import.log"
done
: >"$folder/imported"

wait -n -p ended "${!running[@]}" || true
echo "node: ${running[$ended]} ended" >&2
exit 1

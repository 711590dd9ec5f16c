# A node: containerd, kubelet, kube-proxy.
start_node() {
  mkdir -p "$node_dir/cni" "$node_run"
  write_cni_config
  write_containerd_config
  start "containerd-$k" containerd --config "$node_dir/containerd.toml"
  wait_for containerd on_node version
  [[ -f $cache/pause.tar ]] || make_pause_image
  on_node images import "$cache/pause.tar" >/dev/null
  make_cgroups
  write_kubelet_config
  start "kube-proxy-$k" "$bin/kube-proxy" --kubeconfig "$dir/kubeconfig" --proxy-mode nftables --cluster-cidr "$pod_range" \
    --hostname-override "$node_name" --conntrack-max-per-core 0
  start_kubelet
  wait_for "$node_name" kube wait --for=condition=Ready "node/$node_name" --timeout=1s
}

start_kubelet() {
  start "kubelet-$k" "$bin/kubelet" --config "$node_dir/kubelet.yaml" --kubeconfig "$dir/kubeconfig" --root-dir "$node_dir/kubelet" \
    --cert-dir "$node_dir/kubelet-pki" --hostname-override "$node_name" --node-ip "$node_ip" \
    --node-labels "topology.kubernetes.io/region=$node_datacenter,archipelago.training/datacenter=$node_datacenter"
}

on_node() { ctr -a "$node_run/containerd.sock" -n k8s.io "$@"; }

load_image() { on_node images import "$1"; }

write_cni_config() {
  cat >"$node_dir/cni/10-bridge.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$node_pods"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$node_dir/ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
}

write_containerd_config() {
  cat >"$node_dir/containerd.toml" <<TOML
version = 2
root = "$node_dir/containerd"
state = "$node_run/containerd"
[grpc]
  address = "$node_run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$node_dir/cni"
TOML
}

# Short leases, so that a stopped kubelet is noticed soon; no eviction by the machine's disk, which is not the test's.
write_kubelet_config() {
  cat >"$node_dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$node_net
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://$node_run/containerd.sock
clusterDomain: cluster.local
clusterDNS: [$api_ip]
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
enforceNodeAllocatable: []
nodeLeaseDurationSeconds: 4
nodeStatusUpdateFrequency: 2s
podLogsDir: $node_dir/pod-logs
resolvConf: $dir/resolv.conf
YAML
}

# Each node has a cgroup root of its own; a new cpuset is empty and takes no process before it is filled.
make_cgroups() {
  local hierarchy file
  if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
    mkdir -p "/sys/fs/cgroup/$node_net"
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do mkdir -p "$hierarchy/$node_net"; done
  [[ -d /sys/fs/cgroup/cpuset ]] || return 0
  for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/$node_net/$file"; done
}

remove_cgroups() {
  find /sys/fs/cgroup -depth -type d \( -path "/sys/fs/cgroup/*/$node_net" -o -path "/sys/fs/cgroup/*/$node_net/*" \) -exec rmdir {} + 2>/dev/null
}

stop_kubelet_and_proxy() {
  stop "kubelet-$k"
  stop "kube-proxy-$k"
}

stop_containers() {
  if [[ -S $node_run/containerd.sock ]]; then
    on_node tasks ls -q 2>/dev/null | xargs -r -n1 ctr -a "$node_run/containerd.sock" -n k8s.io tasks kill -s KILL 2>/dev/null
    sleep 1
    on_node tasks ls -q 2>/dev/null | xargs -r -n1 ctr -a "$node_run/containerd.sock" -n k8s.io tasks rm -f 2>/dev/null
  fi
  stop "containerd-$k"
}

# What holds a pod's namespaces: waits, and reaps what its containers leave.
make_pause_image() {
  local work
  work=$(mktemp -d)
  mkdir "$work/root"
  gcc -O2 -static -x c -o "$work/root/pause" - <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGTERM, leave);
  signal(SIGINT, leave);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
C
  "$here/imagefile.py" --root "$work/root" --tag localhost/pause:1 --user 65535:65535 --entrypoint /pause --output "$cache/pause.tar"
  rm -rf "$work"
}

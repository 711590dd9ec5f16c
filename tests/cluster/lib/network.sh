# Namespaces, the bridge between them, and what is done to its links.
network_up() {
  if ! ip link show $wan >/dev/null 2>&1; then
    ip link add $wan type bridge
    ip addr add 198.51.100.1/24 dev $wan
    ip link set $wan up
  fi
  each_node add_link
  if [[ $nodes -eq 2 ]]; then   # pods of one node reach those of the other
    select_node 1
    local first_net=$node_net first_ip=$node_ip first_pods=$node_pods
    select_node 2
    ip -n "$node_net" route add "$first_pods" via "$first_ip"
    ip -n "$first_net" route add "$node_pods" via "$node_ip"
  fi
  select_node 1
}

add_link() {
  ip netns add "$node_net"
  ip link add "$node_net" type veth peer name eth0 netns "$node_net"
  ip link set "$node_net" master $wan up
  ip -n "$node_net" link set lo up
  ip -n "$node_net" addr add "$node_ip/24" dev eth0
  ip -n "$node_net" link set eth0 up
  ip -n "$node_net" route add default via 198.51.100.1
  nsenter --net="/run/netns/$node_net" sysctl -qw net.ipv4.ip_forward=1
}

network_down() {
  local namespace address
  # The pods' own namespaces: their address tells whose they are.
  for namespace in $(ip netns list 2>/dev/null | grep -o '^cni-[^ ]*'); do
    address=$(ip -n "$namespace" -4 -o addr show eth0 2>/dev/null | grep -o '203\.0\.113\.[0-9]*' | head -1 | cut -d. -f4)
    [[ -n $address && $((address / 64)) -eq $number ]] || continue
    umount -l "/run/netns/$namespace" 2>/dev/null
    rm -f "/run/netns/$namespace"
  done
  each_node remove_link
}

remove_link() {
  local pid
  for pid in $(ip netns pids "$node_net" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
  ip link del "$node_net" 2>/dev/null
  ip netns del "$node_net" 2>/dev/null
}

shape_link() {
  tc qdisc del dev "$node_net" root 2>/dev/null || true
  nsenter --net="/run/netns/$node_net" tc qdisc del dev eth0 root 2>/dev/null || true
  [[ $1 == off ]] && return
  tc qdisc add dev "$node_net" root tbf rate "$1" burst 256kb latency 200ms
  nsenter --net="/run/netns/$node_net" tc qdisc add dev eth0 root tbf rate "$1" burst 256kb latency 200ms
}

# set_links [K] up|down: of node K, or of all.
set_links() {
  if [[ -n $1 ]]; then
    select_node "$1"
    ip link set "$node_net" "$2"
  else
    each_node set_link "$2"
  fi
}

set_link() { ip link set "$node_net" "$1"; }

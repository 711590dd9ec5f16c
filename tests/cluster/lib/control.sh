# etcd, API server, controllers, scheduler, DNS; all in node 1's network.
api_level_controllers=garbage-collector-controller,namespace-controller,resourcequota-controller
api_level_controllers+=,serviceaccount-controller,endpoints-controller,endpointslice-controller

make_certificates() {
  mkdir -p "$pki"
  {
    openssl genrsa -out "$pki/sa.key" 2048
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=cluster-$name-ca" -keyout "$pki/ca.key" -out "$pki/ca.crt"
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout "$pki/server.key" -out "$pki/server.csr"
  } 2>/dev/null
  local host alternatives="IP:127.0.0.1,IP:$api_ip,IP:$api_service_ip"
  for host in localhost kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local; do
    alternatives+=,DNS:$host
  done
  openssl x509 -req -in "$pki/server.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 30 \
    -extfile <(echo "subjectAltName=$alternatives") -out "$pki/server.crt" 2>/dev/null
  echo 'admin-token,admin,admin,"system:masters"' >"$pki/tokens.csv"
  cat >"$dir/kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: $name, cluster: {server: "https://$api_ip:6443", certificate-authority: $pki/ca.crt}}]
users: [{name: admin, user: {token: admin-token}}]
contexts: [{name: $name, context: {cluster: $name, user: admin}}]
current-context: $name
YAML
}

# The state of a test cluster need not survive a power cut: no fsync.
start_etcd() {
  select_node 1
  start etcd "$bin/etcd" --name "$name" --data-dir "$dir/etcd" --unsafe-no-fsync --log-level error \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster "$name=http://127.0.0.1:2380"
}

start_api_server() {
  select_node 1
  start apiserver "$bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --secure-port 6443 \
    --advertise-address "$api_ip" --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" --cert-dir "$pki" \
    --client-ca-file "$pki/ca.crt" --token-auth-file "$pki/tokens.csv" --authorization-mode RBAC --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/sa.key" \
    --service-account-signing-key-file "$pki/sa.key" --service-cluster-ip-range "$service_range" \
    --kubelet-preferred-address-types InternalIP
  wait_for 'the API server' kube get --raw /readyz
}

as_admin() {
  local service=$1 program=$2
  shift 2
  start "$service" "$bin/$program" --kubeconfig "$dir/kubeconfig" --authentication-kubeconfig "$dir/kubeconfig" \
    --authorization-kubeconfig "$dir/kubeconfig" --leader-elect=false --cert-dir "$pki" "$@"
}

# A lost node is noticed after 8 s here, not after 40.
start_controllers() {
  select_node 1
  as_admin controller-manager kube-controller-manager --controllers "$1" --service-account-private-key-file "$pki/sa.key" \
    --root-ca-file "$pki/ca.crt" --use-service-account-credentials --enable-hostpath-provisioner \
    --node-monitor-period 1s --node-monitor-grace-period 8s
}

start_scheduler() {
  select_node 1
  as_admin scheduler kube-scheduler
}

start_dns() {
  select_node 1
  cat >"$dir/Corefile" <<CORE
cluster.local:53 {
  errors
  cache 5
  kubernetes cluster.local {
    kubeconfig $dir/kubeconfig
    ttl 5
  }
}
CORE
  start coredns "$bin/coredns" -conf "$dir/Corefile"
  echo "nameserver $api_ip" >"$dir/resolv.conf"
}

# Claims are folders of this machine, which both nodes see. The provisioner makes them for root alone, and fsGroup does
# nothing for host paths: they are opened as a storage driver would.
default_storage() {
  kube apply -f - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/host-path
reclaimPolicy: Delete
YAML
  start volumes bash -c 'while sleep 0.3; do chmod -f 0777 /tmp/hostpath_pv/* 2>/dev/null; done'
}

# The programs of a cluster, compiled from Go modules (their sums are pinned beside this folder) into the cache.
binaries=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl etcd helm coredns)

missing_binaries() {
  local each
  for each in "${binaries[@]}"; do [[ -x $bin/$each ]] || echo "$each"; done
}

# A Go of at least go_minimum: the one in PATH, else the toolchain module, fetched by Debian's older go.
find_go() {
  local have
  for go in go "$cache/go/bin/go"; do
    have=$("$go" env GOVERSION 2>/dev/null | sed 's/^go//') || continue
    [[ $(printf '%s\n' "$go_minimum" "$have" | sort -V | head -1) == "$go_minimum" ]] && return
  done
  go=$cache/go/bin/go
  command -v go >/dev/null || die "Go is missing: ./dev cluster build installs Debian's, which fetches Go $go_bootstrap"
  echo "cluster: fetching Go $go_bootstrap into $cache" >&2
  local module folder
  module=golang.org/toolchain@v0.0.1-go$go_bootstrap.linux-$(command go env GOARCH)
  folder=$(cd / && GO111MODULE=on GOFLAGS=-mod=mod command go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
  [[ -d $folder ]] || die "$module could not be fetched"
  rm -rf "$cache/go.part" "$cache/go"
  mkdir -p "$cache"
  cp -r "$folder" "$cache/go.part"
  chmod -R u+w "$cache/go.part"
  # A module archive has no permissions.
  find "$cache/go.part/bin" "$cache/go.part/pkg/tool" -type f -exec chmod +x {} +
  mv "$cache/go.part" "$cache/go"
}

# compile FOLDER PACKAGE NAME LDFLAGS: a half-written file never has the final name.
compile() {
  [[ -x $bin/$3 ]] && return
  echo "cluster: compiling $3" >&2
  (cd "$work/$1" && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false "$go" build -trimpath -ldflags "-s -w ${4:-}" -o "$bin/$3.part" "$2")
  mv "$bin/$3.part" "$bin/$3"
}

build_binaries() {
  [[ -n $(missing_binaries) ]] || return 0
  local go work each
  find_go
  mkdir -p "$bin"
  work=$(mktemp -d)
  cp -r "$here"/{kubernetes,helm,coredns} "$work"
  local prefix=k8s.io/component-base/version
  local stamp="-X $prefix.gitVersion=$kubernetes_version -X $prefix.gitMajor=1 -X $prefix.gitMinor=34"
  for each in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    compile kubernetes "k8s.io/kubernetes/cmd/$each" "$each" "$stamp"
  done
  compile kubernetes go.etcd.io/etcd/server/v3 etcd
  compile helm helm.sh/helm/v3/cmd/helm helm
  compile coredns . coredns
  rm -rf "$work"
}

#!/usr/bin/env bash
# A whole Kubernetes node for tests: control plane, kubelet, containerd and kwok built with Go, etcd, runc and CNI plugins
# from Debian. About 12 minutes of CPU, once; kept in ~/.cache/ingero/peers/bin.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
mkdir -p "$cache/bin" && cache=$(cd "$cache" && pwd)
"$here/charts.sh"
"$here/images.sh"
source "$here/go.sh"
version=1.36.3

if ! command -v etcd >/dev/null || [ ! -x /usr/lib/cni/bridge ]; then
  [ "$(id -u)" = 0 ] || { echo "only root can install etcd and the CNI plugins" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  RUNLEVEL=1 apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends etcd-server containernetworking-plugins >/dev/null
fi
go_program github.com/containerd/containerd/v2@v2.4.2 ./cmd/containerd containerd -tags no_btrfs,no_zfs,no_devmapper,no_aufs
go_program github.com/containerd/containerd/v2@v2.4.2 ./cmd/containerd-shim-runc-v2 containerd-shim-runc-v2
go_program github.com/containerd/containerd/v2@v2.4.2 ./cmd/ctr ctr
go_program sigs.k8s.io/kwok@v0.8.0 ./cmd/kwok kwok
if [ ! -d "$cache/kwok-stages" ]; then
  go_source sigs.k8s.io/kwok@v0.8.0 "$cache/src/kwok-stages"
  mkdir -p "$cache/kwok-stages.new"
  for part in node/fast node/heartbeat pod/fast; do
    for file in "$cache/src/kwok-stages/kustomize/stage/$part"/*.yaml; do
      case $file in */kustomization.yaml) ;; *) cp "$file" "$cache/kwok-stages.new/${part/\//-}-$(basename "$file")" ;; esac
    done
  done
  mv "$cache/kwok-stages.new" "$cache/kwok-stages" && rm -rf "$cache/src/kwok-stages"
fi

missing=()
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  [ -x "$cache/bin/$program" ] || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0
source_of="$cache/src/kubernetes"
if [ ! -f "$source_of/.ready" ]; then
  go_source "k8s.io/kubernetes@v$version" "$source_of"
  # The staging modules are not part of the downloaded module: their releases of the same version stand in for them.
  sed -i -E "s#=> \./staging/src/(k8s\.io/[a-z-]+)#=> \1 v0.${version#*.}#" "$source_of/go.mod"
  touch "$source_of/.ready"
fi
stamp="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
for program in "${missing[@]}"; do
  (cd "$source_of" && GOWORK=off CGO_ENABLED=0 go build -mod=mod -buildvcs=false -ldflags "-s -w $stamp" -o "$cache/bin/$program.new" "./cmd/$program")
  mv "$cache/bin/$program.new" "$cache/bin/$program"
done
rm -rf "$source_of"

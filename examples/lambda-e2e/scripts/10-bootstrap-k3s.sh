#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Makes one Kubernetes cluster of the machines: k3s, the NVIDIA device plugin and its RuntimeClass.
if [ "$MODE" = local ]; then
  echo "local mode: no Kubernetes"
  exit 0
fi
ssh_to() { ssh -o StrictHostKeyChecking=accept-new "$SSH_USER@$1" "${@:2}"; }
first=$(hosts | head -1)
run ssh_to "$first" 'curl -sfL https://get.k3s.io | sudo sh -s - server --write-kubeconfig-mode 600'
token=$(run ssh_to "$first" sudo cat /var/lib/rancher/k3s/server/node-token)
for host in $(hosts | tail -n +2); do
  run ssh_to "$host" "curl -sfL https://get.k3s.io | sudo K3S_URL=https://$first:6443 K3S_TOKEN='$token' sh -s - agent"
done
fetch() { ssh_to "$first" sudo cat /etc/rancher/k3s/k3s.yaml | sed "s/127.0.0.1/$first/" >"$WORK_DIR/kubeconfig" && chmod 600 "$WORK_DIR/kubeconfig"; }
run fetch
export KUBECONFIG="$WORK_DIR/kubeconfig"
run kubectl apply -f "${DEVICE_PLUGIN_YAML:?set it to the manifest of the NVIDIA device plugin, a file or an address}"
run kubectl label nodes --all --overwrite nvidia.com/gpu.present=true

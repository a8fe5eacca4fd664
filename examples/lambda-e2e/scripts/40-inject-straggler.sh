#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Takes the load from one node and waits until Fleet names it.
date -u +%FT%TZ
if [ "$MODE" = local ]; then
  echo "local mode: the recorded signals of node-$NODE_COUNT drop 40 s after the start of its agent"
  wait_for 180 "Fleet names node-$NODE_COUNT" has_straggler
  exit 0
fi
export KUBECONFIG="$WORK_DIR/kubeconfig"
node=$(kubectl get nodes --output name | tail -1)
run kubectl taint --overwrite "$node" ingero-e2e=slow:NoSchedule
run kubectl --namespace "$NAMESPACE" delete pod --selector app=matmul-baseline --field-selector "spec.nodeName=${node#node/}"
wait_for 180 "Fleet names ${node#node/}" has_straggler

#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Fleet and an agent per node.
if [ "$MODE" = local ]; then
  run mkdir -p "$WORK_DIR"
  start fleet ingero-fleet --config "$E2E_HOME/configs/fleet-three-nodes.yaml" --grpc off --http "127.0.0.1:$LOCAL_PORT" \
    --agent "127.0.0.1:$LOCAL_API_PORT" --admin 127.0.0.1:0 --health 127.0.0.1:0 --prometheus 127.0.0.1:0 --metrics 127.0.0.1:0
  wait_for 30 "Fleet answers" curl --silent --fail --output /dev/null "$(fleet_url)/api/v1/status"
  exit 0
fi
export KUBECONFIG="$WORK_DIR/kubeconfig"
image=(--set "image.repository=${AGENT_IMAGE%:*}" --set-string "image.tag=${AGENT_IMAGE##*:}")
run helm upgrade --install ingero-fleet "$E2E_HOME/helm/ingero-fleet" --namespace "$NAMESPACE" --create-namespace "${image[@]}" --set config.quorum.statistical_min=3 --wait
run helm upgrade --install ingero-agent "$E2E_HOME/helm/ingero-agent" --namespace "$NAMESPACE" "${image[@]}" --set "fleet.clusterId=$CLUSTER_ID" --set stragglerSink.enabled=true --wait

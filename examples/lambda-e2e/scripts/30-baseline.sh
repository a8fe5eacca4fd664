#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# A steady load on every node (a 4096 × 4096 matrix product), until Fleet has a quorum.
signals() { # FILE TICK: 900 ticks of one second; from TICK on the GPU does a third of its work
  python3 - "$1" "$2" <<'PY'
import json, sys

path, slow_from = sys.argv[1], int(sys.argv[2])
with open(path, "w") as file:
    for tick in range(900):
        factor = 0.3 if tick >= slow_from else 1
        noise = 1 + ((tick * 37) % 7 - 3) / 500
        steady = {"launches": int(1000 * factor), "throughput": 500 * factor * noise, "compute": 500 * factor * noise}
        file.write(json.dumps(steady | {"memory": 0.4, "cpu": 0.95}) + "\n")
PY
}
if [ "$MODE" = local ]; then
  for i in $(seq "$NODE_COUNT"); do
    run signals "$WORK_DIR/signals-$i.jsonl" "$([ "$i" = "$NODE_COUNT" ] && echo 40 || echo 900)"
  done
  for i in $(seq "$NODE_COUNT"); do
    start "agent-$i" ingero fleet-push --fleet-endpoint "http://127.0.0.1:$LOCAL_PORT" --fleet-cluster-id "$CLUSTER_ID" \
      --fleet-node-id "node-$i" --fleet-push-interval 1s --fleet-timeout 1s --warmup-samples 5 --replay "$WORK_DIR/signals-$i.jsonl" \
      --fleet-persist-path "$WORK_DIR/baseline-$i.json" --no-engines --no-causes --collectives off
  done
  wait_for 120 "Fleet has a quorum of $NODE_COUNT nodes" has_quorum
  exit 0
fi
export KUBECONFIG="$WORK_DIR/kubeconfig"
run kubectl --namespace "$NAMESPACE" apply -f "$E2E_HOME/examples/lambda-e2e/matmul.yaml"
wait_for 600 "Fleet has a quorum" has_quorum

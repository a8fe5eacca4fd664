#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Keeps what happened in REC_DIR: logs, Fleet's metrics, its answer, and a summary.
run mkdir -p "$REC_DIR"
if [ "$DRY_RUN" = 1 ]; then echo "+ write logs, metrics, status.json and summary.json to $REC_DIR"; exit 0; fi
status >"$REC_DIR/status.json"
if [ "$MODE" = local ]; then
  cp "$WORK_DIR"/logs/*.log "$REC_DIR/"
  metrics=$(sed -n 's/.* is up:.* metrics \([0-9.:]*\).*/\1/p' "$WORK_DIR/logs/fleet.log" | head -1)
  curl --silent --fail "http://$metrics/metrics" >"$REC_DIR/fleet-metrics.txt"
else
  export KUBECONFIG="$WORK_DIR/kubeconfig"
  kubectl --namespace "$NAMESPACE" logs deploy/ingero-fleet >"$REC_DIR/fleet.log"
  kubectl --namespace "$NAMESPACE" logs daemonset/ingero-agent --all-containers --prefix >"$REC_DIR/agents.log"
  kubectl --namespace "$NAMESPACE" exec deploy/ingero-fleet -- python3 -c 'import ssl,urllib.request as u; t = open("/etc/ingero/secret/fleet.token").read().strip(); print(u.urlopen(u.Request("https://localhost:8888/metrics", headers={"Authorization": f"Bearer {t}"}), context=ssl.create_default_context(cafile="/etc/ingero/secret/ca.crt")).read().decode())' >"$REC_DIR/fleet-metrics.txt"
fi
python3 - "$REC_DIR" <<'PY'
import json, os, sys

folder = sys.argv[1]
with open(f"{folder}/status.json") as file:
    (cluster,) = json.load(file)["clusters"]
summary = {
    "cluster_id": cluster["cluster_id"],
    "mode": os.environ["MODE"],
    "nodes": len(cluster["nodes"]),
    "quorum_met": cluster["quorum_met"],
    "threshold": cluster["threshold"],
    "stragglers": [
        {"node_id": node["node_id"], "score": node["score"], "for_s": node["straggler_for_s"]}
        for node in cluster["nodes"]
        if node["straggler"]
    ],
}
with open(f"{folder}/summary.json", "w") as file:
    json.dump(summary, file, indent=2)
print(json.dumps(summary))
PY

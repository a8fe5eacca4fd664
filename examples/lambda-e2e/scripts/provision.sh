#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Rents NODE_COUNT machines and writes their addresses to WORK_DIR/hosts. Replace it for another provider: all that the
# other scripts need is that file, one address per line, the first of which runs the control plane.
run mkdir -p "$WORK_DIR"
if [ "$MODE" = local ]; then
  echo "local mode: this machine is all of the $NODE_COUNT nodes"
  exit 0
fi
: "${LAMBDA_API_KEY:?set LAMBDA_API_KEY, or replace this script for another provider}"
api=https://cloud.lambda.ai/api/v1
request="{\"region_name\":\"$REGION\",\"instance_type_name\":\"$INSTANCE_TYPE\",\"ssh_key_names\":[\"$SSH_KEY_NAME\"],\"quantity\":$NODE_COUNT,\"name\":\"ingero-$CLUSTER_ID\"}"
launch() { curl --silent --show-error --fail-with-body --user "$LAMBDA_API_KEY:" --header 'Content-Type: application/json' --data "$request" "$api/instance-operations/launch" >"$WORK_DIR/launched.json"; }
run launch
ids() { python3 -c 'import json,sys; print(*json.load(open(sys.argv[1]))["data"]["instance_ids"], sep="\n")' "$WORK_DIR/launched.json"; }
addresses() {
  for id in $(ids); do
    curl --silent --show-error --fail-with-body --user "$LAMBDA_API_KEY:" "$api/instances/$id" |
      python3 -c 'import json,sys; d = json.load(sys.stdin)["data"]; sys.exit(1) if d["status"] != "active" else print(d["ip"])' || return 1
  done >"$WORK_DIR/hosts"
}
wait_for 1200 "all $NODE_COUNT machines are active" addresses

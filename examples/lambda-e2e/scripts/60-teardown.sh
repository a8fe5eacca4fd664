#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# Ends and removes everything that the other scripts made, in any state they left it; REC_DIR stays.
if [ "$MODE" = local ]; then
  for file in "$WORK_DIR"/pids/*; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    run kill -- "-$pid" 2>/dev/null || true
    while [ "$DRY_RUN" != 1 ] && kill -0 -- "-$pid" 2>/dev/null; do sleep 0.1; done
  done
  run rm -rf "$WORK_DIR"
  exit 0
fi
if [ -s "$WORK_DIR/launched.json" ]; then
  : "${LAMBDA_API_KEY:?set LAMBDA_API_KEY}"
  ids=$(python3 -c 'import json,sys; print(json.dumps(json.load(open(sys.argv[1]))["data"]["instance_ids"]))' "$WORK_DIR/launched.json")
  run curl --silent --show-error --fail-with-body --user "$LAMBDA_API_KEY:" --header 'Content-Type: application/json' --data "{\"instance_ids\": $ids}" https://cloud.lambda.ai/api/v1/instance-operations/terminate
fi
run rm -rf "$WORK_DIR"

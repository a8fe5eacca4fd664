#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/00-env.sh"
# For GH200 and other aarch64 nodes: builds the image on the first node and pushes it to your registry as AGENT_IMAGE. The
# probes and the NCCL plugin are prebuilt for aarch64, so nothing is compiled against the host's kernel.
if [ "$MODE" = local ]; then
  echo "local mode: no image is needed"
  exit 0
fi
first=$(hosts | head -1)
run rsync -a --exclude .venv --exclude .cache "$E2E_HOME/" "$SSH_USER@$first:ingero/"
run ssh "$SSH_USER@$first" "cd ingero && sudo make image BASE=python:3.11-slim-bookworm && sudo podman push localhost/ingero:0.1.0 '$AGENT_IMAGE'"

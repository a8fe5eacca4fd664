# Settings of the walkthrough; source it first. Every variable can be set before.
#   DRY_RUN=1   print what would be done
#   MODE=local  run everything on this machine: Fleet, three agents with recorded signals, no cloud, no Kubernetes
export MODE=${MODE:-cloud} DRY_RUN=${DRY_RUN:-0}
export CLUSTER_ID=${CLUSTER_ID:-lambda-a100} REGION=${REGION:-us-east-1}
export INSTANCE_TYPE=${INSTANCE_TYPE:-gpu_1x_a100_sxm4} NODE_COUNT=${NODE_COUNT:-3}
export AGENT_IMAGE=${AGENT_IMAGE:-registry.example/ingero:0.1.0} NAMESPACE=${NAMESPACE:-ingero}
export SSH_KEY_NAME=${SSH_KEY_NAME:-ingero-e2e} SSH_USER=${SSH_USER:-ubuntu}
export E2E_HOME=${E2E_HOME:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)}
export WORK_DIR=${WORK_DIR:-${TMPDIR:-/tmp}/ingero-e2e-$CLUSTER_ID} REC_DIR=${REC_DIR:-./artifacts}
export LOCAL_PORT=${LOCAL_PORT:-24318} LOCAL_API_PORT=${LOCAL_API_PORT:-28080}

# Runs a command, or prints it.
run() {
  if [ "$DRY_RUN" = 1 ]; then echo "+ $*"; else "$@"; fi
}

# Starts a program of the local mode in the background and remembers it for the teardown.
start() {
  if [ "$DRY_RUN" = 1 ]; then echo "+ $* &"; return; fi
  local name=$1
  shift
  mkdir -p "$WORK_DIR/pids" "$WORK_DIR/logs"
  setsid "$@" >>"$WORK_DIR/logs/$name.log" 2>&1 &
  echo $! >"$WORK_DIR/pids/$name"
}

# Waits until a command succeeds: wait_for SECONDS WHAT COMMAND…
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  if [ "$DRY_RUN" = 1 ]; then echo "+ wait until $what"; return; fi
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "gave up: $what" >&2; return 1; }
    sleep 1
  done
  echo "$(date -u +%FT%TZ) $what"
}

hosts() { cat "$WORK_DIR/hosts" 2>/dev/null || true; }
fleet_url() { if [ "$MODE" = local ]; then echo "http://127.0.0.1:$LOCAL_API_PORT"; else echo "http://$(hosts | head -1):30080"; fi; }
status() { ingero status --fleet "$(fleet_url)" --cluster "$CLUSTER_ID" --json || [ $? = 1 ]; } # 1: somebody is slow
has_quorum() { status 2>/dev/null | grep '"quorum_met": true' >/dev/null; }
has_straggler() { status 2>/dev/null | grep '"straggler": true' >/dev/null; }

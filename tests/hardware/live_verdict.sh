#!/usr/bin/env bash
# Live verdicts on one GPU: carry the tree with wheelhouse/ (make wheelhouse), then run this. About five minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
ls wheelhouse/*.whl >/dev/null 2>&1 || { echo "first: make wheelhouse (where pip works)" >&2; exit 2; }
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
for wheel in wheelhouse/*.whl; do python3 -m zipfile -e "$wheel" "$unpacked"; done
PYTHONPATH="src:$unpacked" python3 tests/hardware/live_verdict.py "$@"

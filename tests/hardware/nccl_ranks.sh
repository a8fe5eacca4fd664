#!/usr/bin/env bash
# Eight real NCCL ranks on one GPU: carry the tree with wheelhouse/, then run this. Arguments go to nccl_ranks.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -f wheelhouse/libnccl.so.2.xz ] || { echo "first: python3 tests/hardware/prepare_nccl.py (where pip works)" >&2; exit 2; }
PYTHONPATH=src exec python3 tests/hardware/nccl_ranks.py "$@"

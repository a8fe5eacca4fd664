#!/usr/bin/env bash
# Everything that needs a real GPU, on a bare machine: root, python3 with PyTorch and numpy, this tree; nothing is installed.
# With OUT=folder the figures are left there as JSON. PAIRS and WINDOW_S shorten a trial run;
# ONLY=overhead:gpt (a comma list of parts) runs that alone: 20 pairs take two minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHONPATH=src exec "${PYTHON:-python3}" tests/hardware/ebpf_gpu.py "$@"

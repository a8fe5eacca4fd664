#!/usr/bin/env bash
# VictoriaMetrics, which a user would send the same measurements to: built once from its Go module into the cache folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
command -v victoria-metrics >/dev/null && exit 0
[ -x "$cache/bin/victoria-metrics" ] && exit 0
command -v go >/dev/null || { echo "go is not installed: VictoriaMetrics is not measured" >&2; exit 0; }
mkdir -p "$cache/bin" "$cache/src"
export GOFLAGS=-p=1
. "$here/go.sh"
go_program github.com/VictoriaMetrics/VictoriaMetrics@v1.115.0 ./app/victoria-metrics victoria-metrics

#!/usr/bin/env bash
# A Collector with the exporter for ClickHouse, built once into the cache of peers. Takes minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
[ -x "$cache/otelcol-clickhouse" ] && exit 0
command -v go >/dev/null || { echo "go is not installed: the Collector for ClickHouse cannot be built, its tests skip" >&2; exit 1; }
mkdir -p "$cache/src/clickhouse"
cache=$(cd "$cache" && pwd)
export GOBIN="$cache/bin" GOFLAGS=-p=1
GOBIN="$cache/src/clickhouse" go install go.opentelemetry.io/collector/cmd/builder@v0.121.0
cp "$here/collector-clickhouse.yaml" "$cache/src/clickhouse/"
(cd "$cache/src/clickhouse" && ./builder --config collector-clickhouse.yaml && cp build/otelcol-clickhouse "$cache/otelcol-clickhouse.new")
mv "$cache/otelcol-clickhouse.new" "$cache/otelcol-clickhouse"

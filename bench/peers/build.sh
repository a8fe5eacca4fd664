#!/usr/bin/env bash
# Installs the peers that tests and benchmarks run beside us, once, into a cache folder. Those in Go take a few minutes each.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
"$here/perfetto.sh"
command -v go >/dev/null || { echo "go is not installed: peers cannot be built, tests that need them skip" >&2; exit 1; }
mkdir -p "$cache/src"
cache=$(cd "$cache" && pwd)
export GOBIN="$cache/bin" GOFLAGS=-p=1

if [ ! -x "$cache/otelcol" ]; then
  go install go.opentelemetry.io/collector/cmd/builder@v0.160.0
  mkdir -p "$cache/src/collector" && cp "$here/collector.yaml" "$cache/src/collector/"
  (cd "$cache/src/collector" && "$cache/bin/builder" --config collector.yaml && cp build/otelcol "$cache/otelcol.new")
  mv "$cache/otelcol.new" "$cache/otelcol"
fi
if [ ! -x "$cache/telemetrygen" ]; then
  module=github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@v0.160.0
  dir=$(go mod download -json "$module" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  rm -rf "$cache/src/telemetrygen" && cp -r "$dir" "$cache/src/telemetrygen" && chmod -R u+w "$cache/src/telemetrygen"
  (cd "$cache/src/telemetrygen" && rm -rf vendor && GOWORK=off go build -mod=mod -o "$cache/telemetrygen" .)
fi
ls "$cache"

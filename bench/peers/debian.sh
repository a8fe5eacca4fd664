#!/usr/bin/env bash
# Chromium, Prometheus and Alertmanager from Debian, which judge our pages, rules and alerts. Takes a minute, once.
# Prometheus and Alertmanager are only unpacked into the cache folder: installed, they would start services.
set -euo pipefail
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}/debian
missing=()
command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
[ -x "$cache/usr/bin/promtool" ] || missing+=(prometheus prometheus-alertmanager)
[ ${#missing[@]} -gt 0 ] || exit 0
say() { echo "$*: tests that need ${missing[*]} skip" >&2; exit 0; }
command -v apt-get >/dev/null || say "this is no Debian"
[ "$(id -u)" = 0 ] || say "only root can install Debian packages"
export DEBIAN_FRONTEND=noninteractive
timeout 60 apt-get update -qq >/dev/null 2>&1 || say "the package lists cannot be read"
if ! command -v chromium >/dev/null; then
  timeout 240 apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 ||
    echo "Chromium could not be installed: tests of pages skip" >&2
fi
if [ ! -x "$cache/usr/bin/promtool" ]; then
  packages=$(mktemp -d)
  trap 'rm -rf "$packages"' EXIT
  mkdir -p "$cache"
  if (cd "$packages" && timeout 120 apt-get download -qq prometheus prometheus-alertmanager >/dev/null 2>&1); then
    for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$cache"; done
  else
    echo "Prometheus could not be downloaded: tests of rules and alerts skip" >&2
  fi
fi

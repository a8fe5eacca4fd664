#!/usr/bin/env bash
# Python for aarch64 from Debian, unpacked and not set up, and qemu that runs it: aarch64.sh. Takes half a minute, once;
# kept in ~/.cache/ingero/peers/aarch64.
set -euo pipefail
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
missing=()
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { echo "this is no Debian: install ${missing[*]} yourself" >&2; exit 1; }
  [ "$(id -u)" = 0 ] || { echo "only root can install ${missing[*]}" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq  # on a line of its own, so that a failure ends the script
  apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
[ ! -x "$cache/aarch64/usr/bin/python3.11" ] || exit 0
mkdir -p "$cache" && rm -rf "$cache/aarch64.new"
mmdebstrap --architectures=arm64 --variant=extract --include=python3.11,libstdc++6,ca-certificates --aptopt='APT::Install-Recommends "0"' \
  bookworm "$cache/aarch64.new" >&2
rm -rf "$cache/aarch64" && mv "$cache/aarch64.new" "$cache/aarch64"

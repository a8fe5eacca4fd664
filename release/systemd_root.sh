#!/usr/bin/env bash
# Makes the root file system of a Debian with systemd and Python, for tests: systemd_root.sh TARGET.tar
set -euo pipefail
target=$1
[ ! -s "$target" ] || exit 0
mkdir -p "$(dirname "$target")"
mmdebstrap --variant=essential --include=systemd,systemd-sysv,dbus,python3,libstdc++6,ca-certificates,procps \
  --aptopt='APT::Install-Recommends "0"' bookworm "$target.new.tar" >&2
mv "$target.new.tar" "$target"

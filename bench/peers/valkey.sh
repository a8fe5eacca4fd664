#!/usr/bin/env bash
# A Valkey (or Redis 7) from Debian for replicas of Fleet, and HAProxy and nginx that route to them. Nothing is started.
set -euo pipefail
has() { command -v "$1" >/dev/null; }
missing=()
has valkey-server || has redis-server || missing+=(engine)
has haproxy || missing+=(haproxy)
has nginx || missing+=(nginx-light)
[ ${#missing[@]} -gt 0 ] || exit 0
has apt-get || { echo "this is no Debian: install valkey-server (or redis-server 7), haproxy and nginx yourself" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "only root can install ${missing[*]}" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then # keeps the packages from starting their services
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq
for package in "${missing[@]}"; do
  if [ "$package" = engine ]; then # Debian 12 has Valkey in its backports only
    apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends valkey-server >/dev/null 2>&1 ||
      apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends redis-server >/dev/null
  else
    apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends "$package" >/dev/null
  fi
done

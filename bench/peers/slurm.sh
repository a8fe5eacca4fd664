#!/usr/bin/env bash
# Slurm and munge from Debian, for a real cluster on loopback. Nothing is started. Takes half a minute, once.
set -euo pipefail
command -v slurmctld >/dev/null && command -v munged >/dev/null && exit 0
command -v apt-get >/dev/null || { echo "this is no Debian: install slurm-wlm and munge yourself" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "only root can install slurm-wlm and munge" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then # keeps the packages from starting their services
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq && apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends slurm-wlm munge >/dev/null

#!/bin/sh
# Before removal (not before an upgrade): stop what runs. deb passes "remove", rpm passes 0.
set -e
case "$1" in remove | purge | 0) ;; *) exit 0 ;; esac
[ -d /run/systemd/system ] || exit 0
for unit in ingero-agent ingero-fleet ingero-echo; do systemctl disable --now "$unit.service" 2>/dev/null || true; done

#!/bin/sh
# After `apt purge`: configuration folders that are empty, and the account. Databases stay: they are yours.
set -e
[ -d /run/systemd/system ] && systemctl daemon-reload || true
[ "$1" = purge ] || exit 0
rmdir /etc/ingero /etc/ingero-fleet /etc/ingero-echo 2>/dev/null || true
command -v userdel >/dev/null && userdel ingero 2>/dev/null || true

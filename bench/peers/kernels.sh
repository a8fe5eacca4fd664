#!/usr/bin/env bash
# Debian's stock kernels and the emulator that boots them, to try the probes on. Takes a minute or two, once; the kernels
# are kept in ~/.cache/ingero/peers/kernels.
set -euo pipefail
cache=${INGERO_PEERS:-$HOME/.cache/ingero/peers}
mkdir -p "$cache" && cache=$(cd "$cache" && pwd)
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v qemu-system-aarch64 >/dev/null || missing+=(qemu-system-arm)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { echo "this is no Debian: install ${missing[*]} yourself" >&2; exit 1; }
  [ "$(id -u)" = 0 ] || { echo "only root can install ${missing[*]}" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq  # on a line of its own, so that a failure ends the script
  RUNLEVEL=1 apt-get install -o DPkg::Lock::Timeout=200 -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
for machine in amd64 arm64; do
  [ -s "$cache/kernels/$machine" ] && continue
  work=$(mktemp -d)
  chmod 755 "$work" && mkdir -p "$work/lists/partial" "$work/archives/partial" "$cache/kernels"
  # package lists of its own: those of this machine stay as they are
  options=(-qq -o "APT::Architecture=$machine" -o "APT::Architectures::=$machine" -o "Dir::State::lists=$work/lists"
    -o "Dir::Cache::archives=$work/archives" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none)
  apt-get "${options[@]}" update
  package=$(apt-cache "${options[@]}" depends "linux-image-$machine" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -1)
  (cd "$work" && apt-get "${options[@]}" download "$package")
  dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work" --wildcards './boot/vmlinuz-*'
  cp "$work"/boot/vmlinuz-* "$cache/kernels/$machine.new" && mv "$cache/kernels/$machine.new" "$cache/kernels/$machine"
  rm -rf "$work"
done

#!/usr/bin/env bash
# Makes the base image for tests from Debian packages, where no registry can be reached: base.sh TARGET.tar
# Nothing but Python, certificates and libstdc++; without documentation, manuals and translations. A package of Debian's
# set-up brings all of Perl along (perl-base stays), and nothing here converts character sets.
set -euo pipefail
target=$1
[ ! -s "$target" ] || exit 0
mkdir -p "$(dirname "$target")"
excluded=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/info/*')
options=()
for path in "${excluded[@]}"; do options+=("--dpkgopt=path-exclude=$path"); done
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} mmdebstrap --variant=essential "${options[@]}" \
  --include=python3-minimal,libpython3-stdlib,ca-certificates,libstdc++6 \
  --customize-hook='rm -rf "$1"/usr/share/perl/5* "$1"/usr/lib/*/perl/5* "$1"/usr/lib/*/gconv' \
  --aptopt='APT::Install-Recommends "0"' bookworm "$target.new.tar" >&2
mv "$target.new.tar" "$target"

#!/usr/bin/env bash
# Real PyTorch jobs with live verdicts, on a bare GPU machine: carry the tree with wheelhouse/ (make wheelhouse).
set -euo pipefail
cd "$(dirname "$0")/../../.."
export PYTHONUNBUFFERED=1
module=tests.hardware.${SCRIPT:-real_jobs.drive} # SCRIPT=host_causes runs that one
case " $* " in
*" --dry "* | *" --help "*) exec "${PYTHON:-.venv/bin/python}" -m "$module" "$@" ;;
esac
ls wheelhouse/*.whl >/dev/null 2>&1 || { echo "first: make wheelhouse (where pip works)" >&2; exit 2; }
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
xz -dc -T0 wheelhouse/libnccl.so.2.xz >"$unpacked/libnccl.so.2" & # takes seconds
"${PYTHON:-python3}" -c 'import sys, zipfile
for wheel in sys.argv[2:]: zipfile.ZipFile(wheel).extractall(sys.argv[1])' "$unpacked" wheelhouse/*.whl
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) # programs say their version, and nothing is installed
mkdir "$unpacked/ingero-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: ingero\nVersion: %s\n' "$version" >"$unpacked/ingero-$version.dist-info/METADATA"
mkdir "$unpacked/tests" # a package named tests of the machine's own must not be found first
echo "__path__ = ['$PWD/tests']" >"$unpacked/tests/__init__.py"
for part in contract/_native/codecs fleet/_native/fast_path; do # compiled for that machine's Python, if carried
	cp wheelhouse/"${part##*/}".cpython-*.so "src/ingero/${part%/*}/" 2>/dev/null || true
done
export PYTHONPATH="$PWD/src:$unpacked"
# before the GPU is used for minutes: what is missing stops Fleet, and then nothing is judged
"${PYTHON:-python3}" tests/hardware/real_jobs/preflight.py || exit 2
wait
NCCL_LIBRARY="$unpacked/libnccl.so.2" "${PYTHON:-python3}" -m "$module" "$@"

#!/usr/bin/env bash
# All real jobs on a machine that takes commands of ten minutes: the first call starts them in a session of their own,
# every call waits WAIT seconds at most, shows the end of the log and leaves what is new in OUT. Repeat until it says
# "the run is over". LEFT is the device time left, in seconds; arguments go to run.sh. A run that has ended too soon is
# started again and goes on where its rows end.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${OUT:?a folder for what comes back} state=${STATE:-/tmp/real-jobs} wait_s=${WAIT:-575}
began=$SECONDS files=0 bytes=0
mkdir -p "$state/out" "$state/sent" "$out"
[ -z "${LEFT:-}" ] || echo $(($(date +%s) + LEFT)) >"$state/deadline"

is_running() { # a zombie is not
	[ -f "$state/pid" ] && [ ! -f "$state/status" ] && grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$(cat "$state/pid")/status"
}

begin() { # from a copy: the tree may be sent again while jobs start
	rm -rf "$state/tree" "$state/status"
	mkdir "$state/tree"
	cp -r src tests docs pyproject.toml "$state/tree/"
	if [ -d wheelhouse ]; then cp -r wheelhouse "$state/tree/"; fi
	[ -f "$state/out/rows.json" ] && rows=$state/out/rows.json || rows=$state/tree/docs/real-jobs.json
	cp "$rows" "$state/rows-before.json"
	STATE=$state setsid nohup bash -c '"$@" >>"$STATE/log.txt" 2>&1; echo $? >"$STATE/status"' run \
		bash "$state/tree/tests/hardware/real_jobs/run.sh" "$@" --out "$state/out" \
		--rows "$state/rows-before.json" --deadline "$state/deadline" </dev/null >/dev/null 2>&1 &
	echo $! >"$state/pid"
}

hand_over() { # eight files of 16 MiB, 64 MiB in all: rows, log and six archives
	for name in out/rows.json log.txt; do
		if [ -f "$state/$name" ]; then cp "$state/$name" "$out/"; fi
	done
	for archive in "$state"/out/*.tar; do
		[ -f "$archive" ] && [ ! -f "$state/sent/${archive##*/}" ] || continue
		size=$(stat -c %s "$archive")
		[ $files -lt 6 ] && [ $((bytes + size)) -lt 60000000 ] || return 0
		cp "$archive" "$out/" && touch "$state/sent/${archive##*/}"
		files=$((files + 1)) bytes=$((bytes + size))
	done
}

if ! is_running && [ "$(cat "$state/status" 2>/dev/null)" != 0 ]; then begin "$@"; fi
while is_running && [ $((SECONDS - began)) -lt "$wait_s" ]; do
	sleep 2
	hand_over
done
hand_over
tail -n "${LINES_SHOWN:-70}" "$state/log.txt"
if is_running; then
	echo "== the run goes on: send the same command again, now"
elif [ ! -f "$state/status" ]; then
	echo "== the run was ended from outside: send the same command again, it goes on"
	exit 3
elif [ "$(cat "$state/status")" = 0 ]; then
	echo "== the run is over; $(ls "$state/out" | grep -c tar$) archives, $(ls "$state/sent" | wc -l) of them sent"
else
	echo "== the run failed with status $(cat "$state/status"): the log says why"
	exit 2
fi

"""Writers of a lake in S3: whose upkeep follows whose, and how many files there are.

`make e2e-lake` runs it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body
from tests.support.lakes import lake_for, url_of
from tests.support.stores import ON_LAKE, OpenWriter, lake_writers, writing
from tests.support.waiting import until

from ingero.contract.otlp.rows import Signal
from ingero.echo.store.loader import RETAIN_EVERY_S
from ingero.errors import StoreError
from ingero.storage.events.lake.store import orphans_statement, tidy_statements
from ingero.storage.events.loading import load_safely
from ingero.storage.journal.frames import Frame
from ingero.storage.quarantine import Quarantine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not ON_LAKE, reason="needs a lake in S3: `make e2e-lake`"),
]
HOUR_US = 3_600_000_000


def frame(seq: int, first: int) -> Frame:
    body = metrics_body(points=3, first=first)
    return Frame(seq, 0, time.time_ns() // 1000, Signal.METRICS, body)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenWriter]:
    with lake_writers(tmp_path, in_bucket=True) as open_writer:
        yield open_writer


_OWNER = """
import sys, time
from pathlib import Path
from ingero.storage.events.lake.address import LakeSecrets, parse_lake_address
from ingero.storage.events.lake.store import LakeStore
url, beside = sys.argv[1:]
secrets = LakeSecrets(s3_key_id="key", s3_secret="secret")
store = LakeStore(parse_lake_address(url), secrets, Path(beside), 1 << 29, 1)
print(store.owns_upkeep(), flush=True)
time.sleep(600)
"""


def test_upkeep_goes_on_within_a_minute_when_its_owner_is_killed(
    opened: OpenWriter, tmp_path: Path
) -> None:
    other = opened("other")
    address, _ = lake_for(tmp_path / "lake", in_bucket=True)
    command = [sys.executable, "-c", _OWNER, url_of(address), str(tmp_path / "owner")]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "True\n"
        assert not other.owns_upkeep()
        os.kill(owner.pid, signal.SIGKILL)
    until(other.owns_upkeep)
    assert RETAIN_EVERY_S <= 60  # how often it asks


def test_files_and_state_stay_few_however_many_loads_there_are(opened: OpenWriter) -> None:
    one, two = opened("one"), opened("two")
    for number in range(1, 13):
        one.load([frame(number, 1000 + 10 * number)])
        two.load([frame(number, 5000 + 10 * number)])
    one.roll_up(time.time_ns() // 1000)
    files = "SELECT file_count FROM ducklake_table_info('lake') WHERE table_name = 'events'"
    assert one.scalar(files) == 24
    later_us = time.time_ns() // 1000 + 2 * HOUR_US
    one.upkeep(later_us)
    for _ in range(2):  # what one round replaces, the next one removes
        for statement in (*tidy_statements(later_us), orphans_statement(later_us)):
            one._execute(statement)
    assert one.scalar(files) == 1
    assert one.scalar("SELECT count(*) FROM ducklake_snapshots('lake')") <= 4
    stored = one.scalar(f"SELECT count(*) FROM glob('{one._catalogue._address.data}**')")
    listed = one.scalar("SELECT sum(file_count)::BIGINT FROM ducklake_table_info('lake')")
    assert stored <= listed + 2
    with closing(two.cursor()) as reader:
        found = reader.execute("SELECT count(*), count(DISTINCT (seq, idx)) FROM events").fetchall()
    assert found == [(72, 72)]
    assert two.load([frame(13, 9000)]).events == 3


def test_an_echo_whose_lake_was_upgraded_by_a_newer_one_says_so_and_sets_nothing_aside(
    opened: OpenWriter, tmp_path: Path
) -> None:
    store = opened("one")
    quarantine = Quarantine(tmp_path / "quarantine", 1 << 20)
    assert load_safely(store, quarantine, [frame(1, 0)]).events == 3
    with writing(store) as newer:
        newer.execute("ALTER TABLE events ADD COLUMN later INTEGER")
        newer.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    for frames in ([frame(2, 10)], [frame(2, 10), frame(3, 20)]):
        with pytest.raises(StoreError, match=r"has schema version 99, .* use a newer ingero-echo"):
            load_safely(store, quarantine, frames)
    assert not quarantine.entries
    assert store.applied_seq == 1
    store.close()
    with pytest.raises(StoreError, match="use a newer ingero-echo"):
        opened("one")

"""A real PostgreSQL and, on demand, a real S3 service for lakes, each started once per process."""

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.support.peers import FOLDER, free_port

from ingero.storage.events.lake.address import LakeAddress, LakeSecrets

PATIENCE_S: Final = 60.0
WRITER, READER = "echo_writer", "echo_reader"
LOCKED, PASSWORD = "echo_locked", "right"  # the only role that needs a password
_UNPRIVILEGED: Final = 65534  # PostgreSQL refuses to run as root


class Child:
    """A server that can be killed and started again with the same data."""

    def __init__(self, command: list[str], log: Path, uid: int | None) -> None:
        self._command, self._log, self._uid = command, log, uid
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, user=self._uid, start_new_session=True
            )

    def kill(self) -> None:
        """End it and its children at once, as a power cut would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Postgres:
    """A cluster of PostgreSQL in a temporary folder, with the two roles of Echo."""

    def __init__(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            pytest.skip("needs PostgreSQL from Debian, which `make peers-lake` installs")
        self._bin = programs[-1].parent
        self.folder = Path(tempfile.mkdtemp(prefix="lake-"))
        uid = _UNPRIVILEGED if os.geteuid() == 0 else None
        if uid is not None:
            os.chown(self.folder, uid, uid)
        self.port = free_port()
        data = str(self.folder / "data")
        initdb = [str(self._bin / "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N"]
        subprocess.run(initdb, check=True, capture_output=True, user=uid)
        access = Path(data, "pg_hba.conf")
        access.write_text(f"host all {LOCKED} all scram-sha-256\n{access.read_text()}")
        # the kernel keeps what a killed server wrote; only a power cut would need fsync
        with Path(data, "postgresql.conf").open("a") as settings:
            settings.write("fsync = off\nmax_connections = 200\n")
        listening = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        command = [str(self._bin / "postgres"), "-D", data, *listening]
        self.child = Child(command, self.folder / "log", uid)
        self.start()
        self.execute("postgres", "CREATE DATABASE echo")
        for role in (WRITER, READER):
            self.execute("echo", f"CREATE ROLE {role} LOGIN")
        self.execute("echo", f"CREATE ROLE {LOCKED} LOGIN PASSWORD '{PASSWORD}'")
        self.execute("echo", f"GRANT CREATE ON DATABASE echo TO {WRITER}")

    def start(self) -> None:
        self.child.start()
        _wait(lambda: self.execute("postgres", "SELECT 1"))

    def execute(self, database: str, statement: str) -> list[tuple[object, ...]]:
        psycopg = pytest.importorskip("psycopg", reason="needs the extra lake")
        where = f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"
        with psycopg.connect(where, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class ObjectStorage:
    """SeaweedFS with one bucket."""

    def __init__(self) -> None:
        self._weed = shutil.which("weed", path=f"{FOLDER / 'bin'}:{Path(sys.executable).parent}")
        if self._weed is None:
            pytest.skip("needs SeaweedFS, which `make peers-lake` installs")
        self.folder = Path(tempfile.mkdtemp(prefix="lake-s3-"))
        self.port, self._master, self._filer = free_port(), free_port(), free_port()
        ports = {
            "s3.port": self.port,
            "s3.port.grpc": free_port(),
            "s3.port.iceberg": 0,  # not started
            "s3.port.lance": 0,
            "master.port": self._master,
            "master.port.grpc": free_port(),
            "volume.port": free_port(),
            "volume.port.grpc": free_port(),
            "filer.port": self._filer,
            "filer.port.grpc": free_port(),
        }
        command = [self._weed, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-s3"]
        command += ["-ip.bind=127.0.0.1", "-volume.max=8", "-master.volumeSizeLimitMB=512"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        self._grpc = {name: ports[f"{name}.port.grpc"] for name in ("master", "filer")}
        self.child = Child(command, self.folder / "log", None)
        self.start()
        _wait(self._create_bucket)

    def start(self) -> None:
        self.child.start()
        _wait(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close())

    def _create_bucket(self) -> None:
        servers = [
            f"-master=127.0.0.1:{self._master}.{self._grpc['master']}",
            f"-filer=127.0.0.1:{self._filer}.{self._grpc['filer']}",
        ]
        done = subprocess.run(
            [str(self._weed), "shell", *servers],
            input=b"s3.bucket.create -name echo\n",
            capture_output=True,
            timeout=20,
            check=False,
        )
        if b"created bucket" not in done.stdout + done.stderr:
            raise ConnectionError(done.stderr.decode(errors="replace"))


@functools.cache
def postgres() -> Postgres:
    server = Postgres()
    atexit.register(_remove, server)
    return server


@functools.cache
def object_storage() -> ObjectStorage:
    server = ObjectStorage()
    atexit.register(_remove, server)
    return server


def lake_for(path: Path, *, in_bucket: bool) -> tuple[LakeAddress, LakeSecrets]:
    """Return the lake that belongs to a path: the same for the same path."""
    name = "t" + hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
    if in_bucket:
        endpoint, data = f"127.0.0.1:{object_storage().port}", f"s3://echo/{name}/"
    else:
        endpoint, data = "", f"{path.parent}/{name}/"
    address = LakeAddress(
        host="127.0.0.1",
        port=postgres().port,
        user=WRITER,
        database="echo",
        data=data,
        schema=name,
        s3_endpoint=endpoint,
        s3_tls=False,
        ssl_mode="disable",
    )
    return address, LakeSecrets(reader_user=READER, s3_key_id="key", s3_secret="secret")


def url_of(address: LakeAddress) -> str:
    """Return the address as a setting states it."""
    options = f"data={address.data}&schema={address.schema}&sslmode={address.ssl_mode}"
    if address.is_s3:
        options += f"&s3_endpoint={address.s3_endpoint}&s3_tls=false"
    return (
        f"ducklake:postgres://{address.user}@{address.host}:{address.port}/{address.database}"
        f"?{options}"
    )


def _wait(attempt: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            attempt()
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _remove(server: Postgres | ObjectStorage) -> None:
    server.child.kill()
    shutil.rmtree(server.folder, ignore_errors=True)

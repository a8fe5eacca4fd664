"""Routing by cluster without a shared log (F058), with a real HAProxy and a real nginx."""

import contextlib
import http.client
import http.server
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.peers import free_port

ROUTING = Path(__file__).parents[2] / "deploy" / "routing"
CLUSTERS = [f"cluster-{number}" for number in range(120)]
NAMES = ("fleet-0", "fleet-1", "fleet-2")


class Backend(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Stands for one Fleet: it answers every push with its name."""

    daemon_threads = True

    is_gone = False

    def __init__(self, name: str) -> None:
        outer = self

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if outer.is_gone:  # on a connection that was open before
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(name)))
                self.end_headers()
                self.wfile.write(name.encode())

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        super().__init__(("127.0.0.1", 0), Answer)
        self.name = name
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.is_gone = True
        self.shutdown()
        self.server_close()


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"needs {name}, which `make peers-valkey` installs")
    return found


@contextlib.contextmanager
def balancer(kind: str, folder: Path, backends: list[Backend]) -> Iterator[int]:
    """Run the shipped configuration with the ports of this test."""
    port = free_port()
    if kind == "haproxy":
        text = (
            (ROUTING / "haproxy.cfg")
            .read_text()
            .replace("bind :4318\n", f"bind 127.0.0.1:{port}\n")
        )
        for backend in backends:
            place = f"127.0.0.1:{backend.port} check port {backend.port}"
            text = text.replace(f"{backend.name}:4318", place)
        command = [program("haproxy"), "-db", "-f", str(folder / "balancer.conf")]
    else:
        text = (ROUTING / "nginx.conf").read_text()
        text = text.replace("listen 4318", f"listen 127.0.0.1:{port}")
        for backend in backends:
            text = text.replace(f"{backend.name}:4318", f"127.0.0.1:{backend.port}")
        more = "daemon off; master_process off; pid nginx.pid; error_log stderr;"
        command = [program("nginx"), "-p", str(folder), "-c", "balancer.conf", "-g", more]
    (folder / "balancer.conf").write_text(text)
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    until_s = time.monotonic() + 20
    while True:
        try:
            if route(port, "any"):
                return
        except OSError:
            pass
        assert time.monotonic() < until_s, "the balancer does not answer"
        time.sleep(0.05)


def route(port: int, cluster: str) -> str:
    """Return the backend that a push of a cluster reaches; empty where none answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", f"/v1/metrics?cluster_id={cluster}&node_id=n1", b"x")
        reply = connection.getresponse()
        return reply.read().decode() if reply.status == 200 else ""
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_only_the_clusters_of_a_dead_fleet_move(kind: str, tmp_path: Path) -> None:
    program(kind)
    backends = [Backend(name) for name in NAMES]
    try:
        with balancer(kind, tmp_path, backends) as port:
            before = {cluster: route(port, cluster) for cluster in CLUSTERS}
            assert set(before.values()) == set(NAMES)
            assert before == {cluster: route(port, cluster) for cluster in CLUSTERS}
            backends[1].stop()
            until_s, after = time.monotonic() + 20, dict(before)
            while NAMES[1] in after.values() or "" in after.values():
                assert time.monotonic() < until_s, after
                after = {cluster: route(port, cluster) for cluster in CLUSTERS}
            moved = {cluster for cluster in CLUSTERS if before[cluster] != after[cluster]}
            assert moved == {cluster for cluster in CLUSTERS if before[cluster] == NAMES[1]}
    finally:
        for backend in (backends[0], backends[2]):
            backend.stop()

"""Nodes join a Fleet over TLS, push as themselves, are asked, revoked, and leave."""

import concurrent.futures
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.joined_fleet import JoinedFleet, joined_fleet, run
from tests.support.waiting import until
from tests.support.whole_agent import WholeAgent, whole_agent

from ingero.agent.service.membership import MemberFiles, renew_if_due
from ingero.children.service_manager import has_systemd
from ingero.contract.enrolment.messages import EnrolledNodes
from ingero.errors import IngeroError
from ingero.storage.trace.database import TraceDb

PUSH_S = 1.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedFleet]:
    with joined_fleet(tmp_path_factory.mktemp("fleet") / "fleet") as running:
        yield running


def prepare(folder: Path) -> None:
    """A configuration that was there before: faster pushes, its own files, no recording."""
    folder.mkdir(parents=True)
    (folder / "ingero.yaml").write_text(
        "# of this node\n"
        "agent:\n  record: false\n"
        f"store:\n  path: {folder / 'trace.db'}\n"
        f"fleet:\n  push_interval: {PUSH_S:g}s\n  timeout: {PUSH_S:g}s\n"
        f"health:\n  persistence:\n    path: {folder / 'baseline.json'}\n"
    )


def refused_pushes(agent: WholeAgent) -> float:
    lines = [
        line for line in agent.metrics().splitlines() if line.startswith("ingero_agent_pushes")
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'outcome="ok"' not in line)


def test_nodes_join_push_are_asked_and_leave(fleet: JoinedFleet, tmp_path: Path) -> None:
    names = ["gpu-1", "gpu-2", "gpu-3"]
    code = fleet.code("--nodes", "3", "--cluster", "train")
    for name in names:
        prepare(tmp_path / name)
    before = (tmp_path / "gpu-1" / "ingero.yaml").read_text()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        joining = [
            pool.submit(fleet.join, tmp_path / name, name, code, "--api", "127.0.0.1:0")
            for name in names
        ]
        done = [each.result() for each in joining]
    assert [each.returncode for each in done] == [0, 0, 0], [each.stderr for each in done]
    assert code not in "".join(each.stdout + each.stderr for each in done)
    fourth = fleet.join(tmp_path / "gpu-4", "gpu-4", code)
    assert fourth.returncode != 0
    assert "was for 3 nodes, and all have joined" in fourth.stderr

    written = yaml.safe_load((tmp_path / "gpu-1" / "ingero.yaml").read_text())
    assert written["fleet"]["cluster_id"] == "train"
    assert written["fleet"]["url"] == fleet.url
    assert written["fleet"]["push_interval"] == "1s"
    TraceDb(tmp_path / "gpu-1" / "trace.db", "gpu-1").close()
    with whole_agent(tmp_path / "gpu-1", None) as one, whole_agent(tmp_path / "gpu-2", None) as two:
        until(lambda: set(fleet.nodes()) >= {"gpu-1", "gpu-2"}, one.said)
        check_query(fleet, one)
        check_revocation(fleet, one, two)
        told = leave(tmp_path / "gpu-2")
        assert "had revoked this node before" in told
        assert has_systemd() or f"still runs: stop process {two.process.pid}" in told
    assert "has forgotten this node" in leave(tmp_path / "gpu-1")
    assert (tmp_path / "gpu-1" / "ingero.yaml").read_text() == before
    assert not (tmp_path / "gpu-1" / "state").exists()
    listed = run("ingero", "fleet", "nodes", str(fleet.files.root)).stdout
    assert "gpu-1" not in listed
    assert "gpu-3" in listed


def test_a_code_is_for_the_cluster_of_the_fleet(tmp_path: Path) -> None:
    """Nodes of a second code are compared with those of the first."""
    folder = str(tmp_path / "fleet")
    run("ingero", "fleet", "init", folder, "--name", "127.0.0.1", "--cluster", "no")
    assert (
        "1 node of cluster no and" in run("ingero", "fleet", "code", folder, "--nodes", "1").stdout
    )
    shutil.move(tmp_path / "fleet" / "operator", tmp_path / "elsewhere")  # as its file says
    moved = run("ingero", "fleet", "code", folder, "--nodes", "1").stdout
    assert "1 node of cluster no and" in moved
    other = run("ingero", "fleet", "code", folder, "--cluster", "yes").stdout
    assert "64 nodes of cluster yes and" in other
    assert "no node has joined yet" in run("ingero", "fleet", "nodes", folder).stdout


def test_who_joins_twice_leaves_everything(fleet: JoinedFleet, tmp_path: Path) -> None:
    code = fleet.code()
    for _ in range(2):
        assert fleet.join(tmp_path / "n", "gpu-8", code).returncode == 0
    leave(tmp_path / "n")
    assert not (tmp_path / "n" / "ingero.yaml").exists()


def test_a_server_without_tls_is_no_fleet(tmp_path: Path, fleet: JoinedFleet) -> None:
    address = f"https://{fleet.addresses['health']}"
    refused = run(
        "ingero", "join", address, fleet.code(), "--no-unit", "--state-dir", str(tmp_path)
    )
    assert "the server there does not use TLS" in refused.stderr


def leave(folder: Path) -> str:
    here = {"INGERO_RUNTIME_DIR": str(folder / "run")}
    left = run("ingero", "leave", "--state-dir", str(folder / "state"), **here)
    assert left.returncode == 0, left.stderr
    return left.stdout


def check_query(fleet: JoinedFleet, agent: WholeAgent) -> None:
    """What Fleet vouches for is trusted by those that Fleet vouches for, and by nobody else."""
    agent.wait_until_healthy()
    node = agent.part("api").addresses["api"].removeprefix("https://")
    question = ("ingero", "query", "--nodes", node, "--json", "SELECT 1 AS one")
    config = fleet.files.operator / "ingero.yaml"
    answered = run(*question, INGERO_CONFIG=str(config))
    assert answered.returncode == 0, answered.stderr
    assert '"one"' in answered.stdout
    made = config.read_text()
    assert "url: https://127.0.0.1:8080\n" in made
    config.write_text(made.replace("https://127.0.0.1:8080", fleet.url))  # the port of this test
    status = run("ingero", "status", "--json", INGERO_CONFIG=str(config))
    assert "gpu-1" in status.stdout, status.stderr
    without = run(
        *question,
        "--ca-cert",
        str(fleet.files.enrolment / "authority.crt"),
        INGERO_CONFIG="/dev/null",
    )
    assert without.returncode != 0
    stranger = run(*question, INGERO_CONFIG="/dev/null")
    assert "certificate is unknown" in stranger.stderr + stranger.stdout


def check_revocation(fleet: JoinedFleet, other: WholeAgent, revoked: WholeAgent) -> None:
    """A revoked node is refused within one push interval, and only that one."""
    assert refused_pushes(revoked) == 0, revoked.said
    done = run("ingero", "fleet", "revoke", "gpu-2", str(fleet.files.root))
    assert done.returncode == 0, done.stderr
    began_s = time.monotonic()
    until(lambda: refused_pushes(revoked) > 0, revoked.said)
    assert time.monotonic() - began_s < 5 * PUSH_S + 5
    until(lambda: "401" in "".join(revoked.part("pusher").notes), "health does not say it")
    assert refused_pushes(other) == 0


def test_a_code_is_checked_before_anything_is_sent(fleet: JoinedFleet, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run("ingero", "fleet", "init", str(other), "--name", "127.0.0.1").returncode == 0
    made = run("ingero", "fleet", "code", str(other), "--json").stdout
    foreign = yaml.safe_load(made)["code"]
    refused = fleet.join(tmp_path / "n", "gpu-9", foreign)
    assert refused.returncode != 0
    assert "nothing was sent" in refused.stderr
    assert not (tmp_path / "n" / "ingero.yaml").exists()


def test_a_wrong_secret_and_an_expired_code_are_refused(fleet: JoinedFleet, tmp_path: Path) -> None:
    good = fleet.code()
    wrong = fleet.join(tmp_path / "n", "gpu-9", good[:-8] + "AAAAAAAA")
    assert "not valid or has expired" in wrong.stderr
    short = tmp_path / "code.txt"
    short.write_text(fleet.code("--valid-for", "1ms"))
    short.chmod(0o644)
    expired = fleet.join(tmp_path / "n", "gpu-9", good, "--code-file", str(short))
    assert "not valid or has expired" in expired.stderr
    assert f"other users can read {short}" in expired.stderr
    audit = (fleet.files.enrolment / "audit.log").read_text()
    assert '"why":"wrong code"' in audit
    assert good not in audit


def test_a_certificate_is_renewed_after_a_third_of_its_life(
    fleet: JoinedFleet, tmp_path: Path
) -> None:
    done = fleet.join(tmp_path / "n", "gpu-8", fleet.code("--nodes", "1"))
    assert done.returncode == 0, done.stderr
    files = MemberFiles(tmp_path / "n" / "state")
    first = files.certificate.read_text()
    assert not renew_if_due(files)
    assert renew_if_due(files, time.time() + 3 * 86400)
    assert files.certificate.read_text() != first
    assert run("ingero", "fleet", "revoke", "gpu-8", str(fleet.files.root)).returncode == 0
    until(lambda: "gpu-8" not in token_owners(fleet), "the revocation was not noticed")
    with pytest.raises(IngeroError):
        renew_if_due(files, time.time() + 3 * 86400)


def token_owners(fleet: JoinedFleet) -> set[str]:
    found = fleet.client().get("/api/v1/enrol/nodes", EnrolledNodes).nodes
    return {node.node for node in found if node.revoked_s is None}

"""The fan-out with real node servers, over real TLS, through a proxy that misbehaves."""

import asyncio
import contextlib
import re
import time
from pathlib import Path

import pytest
from tests.support.fanout_nodes import SQL, ask, host_and_port, node
from tests.support.fault_proxy import FaultProxy
from tests.support.tls_files import Authority
from tests.support.trace_databases import database
from tests.support.waiting import PATIENCE_S

from ingero.core.clocks.skew import skew_warnings
from ingero.errors import AuthError, ConfigError
from ingero.transport.certificates import kept_certificate
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import NodeReply, Question
from ingero.transport.fanout.failures import NO_SERVER
from ingero.transport.fanout.nodes import (
    FanoutPolicy,
    check_nodes,
    client_tls,
    distinct,
    parse_nodes,
)
from ingero.transport.tls import (
    ClientTls,
    ServerTls,
    fingerprint_of_file,
)


async def test_replies_come_in_node_order_with_names(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    async with (
        node(db, "slow-one") as one,
        node(db, "two") as two,
        FaultProxy(host_and_port(one), delay_s=0.3) as late,
    ):
        replies = await ask([late.address, two])
    assert [(reply.name, reply.failure) for reply in replies] == [("slow-one", None), ("two", None)]
    assert replies[0].body == b'{"columns":["n"],"rows":[[3]]}'


async def test_f148_all_nodes_are_asked_at_once(tmp_path: Path) -> None:
    """None of five nodes answers before all were asked: one after the other would never end."""
    together = asyncio.Barrier(5)
    async with node(database(tmp_path / "a.db")) as address, contextlib.AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(FaultProxy(host_and_port(address), together=together))
            for _ in range(5)
        ]
        replies = await ask([proxy.address for proxy in proxies])
    assert [reply.failure for reply in replies] == [None] * 5


async def test_names_in_any_script_arrive(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db"), "knöten-节点\n1") as address:
        (reply,) = await ask([address])
    assert (reply.failure, reply.name) == (None, "knöten-节点?1")


async def test_v9c_a_silent_node_costs_its_timeout_and_a_sentence(tmp_path: Path) -> None:
    async with (
        node(database(tmp_path / "a.db")) as address,
        FaultProxy(host_and_port(address), swallow=True) as silent,
    ):
        replies = await ask([address, silent.address], timeout_s=3)
    assert [reply.failure for reply in replies] == [None, "no answer within 3 s"]


async def test_cut_refused_and_trickling_nodes_each_have_their_sentence(tmp_path: Path) -> None:
    async with (
        node(database(tmp_path / "a.db")) as address,
        FaultProxy(host_and_port(address), cut_after_bytes=40) as cut,
        FaultProxy(host_and_port(address), cut_after_bytes=10**6, trickle_s=0.2) as slow,
    ):
        cut_off, refused, trickle = await ask(
            [cut.address, "127.0.0.1:1", slow.address], timeout_s=3
        )
    assert "closed the connection" in (cut_off.failure or "") or "broke off" in (
        cut_off.failure or ""
    )
    assert refused.failure == f"cannot connect: Connection refused; {NO_SERVER}"
    assert trickle.failure == "no answer within 3 s"


async def test_wrong_names_are_reported_and_do_not_stop_the_others(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db")) as address:
        good, unknown, no_name = await ask(
            [address, "no-such-node.invalid:80", "ä" * 60 + ":80"], timeout_s=2 * PATIENCE_S
        )
    assert good.failure is None
    assert re.match("cannot connect: [A-Z].*", unknown.failure or "")
    assert "Unknown error" not in (unknown.failure or "")
    assert no_name.failure == "cannot connect: not a valid host name"


async def test_a_node_that_refuses_sql_is_quoted(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db")) as address:
        (reply,) = await ask(
            [address], Question("/api/v1/query", {"sql": "DELETE FROM events", "limit": 1})
        )
    assert (reply.failure or "").startswith("HTTP 400: only queries are allowed")


async def test_an_endless_answer_is_an_error_not_memory(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db")) as address:
        (reply,) = await ask([address], max_reply_bytes=20)
    assert "larger than" in (reply.failure or "")


async def test_unknown_certificate_stops_and_shows_its_fingerprint(tmp_path: Path) -> None:
    tls = kept_certificate(tmp_path, ["localhost", "127.0.0.1"])
    print_of = fingerprint_of_file(tls.cert)
    other = ("ff" if print_of.startswith("00") else "00") + print_of[2:]
    async with node(database(tmp_path / "a.db"), tls=tls) as address:
        (stranger,) = await ask([address])
        (pinned,) = await ask([address], trusted={address: print_of})
        (signed,) = await ask([address], tls=ClientTls(ca=tls.cert))
        (changed,) = await ask([address], trusted={address: other})
    assert f"unknown: self-signed certificate (fingerprint {print_of})" in (stranger.failure or "")
    assert f"`ingero nodes trust {address}`" in (stranger.failure or "")
    assert (pinned.failure, signed.failure) == (None, None)
    assert "not the trusted one" in (changed.failure or "")


async def test_a_node_known_by_its_certificate_is_not_asked_without_one(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db")) as address:
        (downgraded,) = await ask([address], trusted={address: "00" * 32})
        (plain,) = await ask([address])
    assert (downgraded.failure or "").startswith("TLS failed: ")
    assert plain.failure is None, "a server on this machine may speak plaintext"


async def test_f137_client_certificates_to_a_node_known_by_its_fingerprint(tmp_path: Path) -> None:
    mine = kept_certificate(tmp_path / "server", ["gpu-node-01"])
    authority = Authority.make(tmp_path / "clients")
    client = authority.issue("client", for_client=True)
    mutual = ServerTls(cert=mine.cert, key=mine.key, client_ca=authority.cert)
    async with node(database(tmp_path / "a.db"), tls=mutual) as address:
        trusted = {address: fingerprint_of_file(mine.cert)}
        (without,) = await ask([address], trusted=trusted)
        (with_own,) = await ask(
            [address], tls=ClientTls(cert=client.cert, key=client.key), trusted=trusted
        )
    assert without.failure is not None
    assert with_own.failure is None


async def test_token_comes_from_the_policy(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db"), token="s3cret") as address:
        (without,) = await ask([address])
        (wrong,) = await ask([address], token="wrong")
        (with_token,) = await ask([address], token="s3cret")
    places = "$INGERO_FLEET_TOKEN or fleet.token_file of ingero.yaml"
    assert without.failure == f"HTTP 401: a bearer token is needed; put it into {places}"
    assert wrong.failure == f"HTTP 401: a bearer token is needed; not the token in {places}"
    assert with_token.failure is None


async def test_f131_wrong_clocks_are_measured_while_asking(tmp_path: Path) -> None:
    """F150: the clock of one node is right when it is first asked, and ahead afterwards."""
    db, ahead_ns = database(tmp_path / "a.db"), iter([0])
    async with (
        node(db, "right") as one,
        node(db, "ahead", now_ns=lambda: time.time_ns() + next(ahead_ns, 500_000_000_000)) as two,
        Fanout(FanoutPolicy(timeout_s=PATIENCE_S)) as fanout,
    ):
        replies = [reply async for reply in fanout.ask([one, two], SQL)]
    assert all(reply.failure is None for reply in replies)
    (warning,) = skew_warnings(fanout.offsets([one, two]), 1000.0)
    assert (warning.node, warning.other) == ("right", "ahead")
    assert warning.offset_ms == pytest.approx(500_000, rel=0.02)


@pytest.mark.parametrize("known_by", ["authority", "fingerprint"])
async def test_a_second_question_uses_the_same_connections(tmp_path: Path, known_by: str) -> None:
    tls = kept_certificate(tmp_path, ["127.0.0.1"])
    async with (
        node(database(tmp_path / "a.db"), tls=tls) as address,
        FaultProxy(host_and_port(address)) as proxy,
    ):
        by_authority = FanoutPolicy(timeout_s=PATIENCE_S, tls=ClientTls(ca=tls.cert))
        by_fingerprint = FanoutPolicy(
            timeout_s=PATIENCE_S, trusted={proxy.address: fingerprint_of_file(tls.cert)}
        )
        async with Fanout(by_authority if known_by == "authority" else by_fingerprint) as fanout:
            for _ in range(3):
                assert [reply.failure async for reply in fanout.ask([proxy.address], SQL)] == [None]
        assert proxy.accepted == 1


def test_node_lists_and_refusals() -> None:
    assert parse_nodes("[a:1, b:2,, a:1]") == ["a:1", "b:2"]
    assert distinct(["https://gpu-1:80/", "gpu-1:80", "GPU-1:80", "gpu-2:80"]) == [
        "https://gpu-1:80/",
        "gpu-2:80",
    ]
    with pytest.raises(
        ConfigError, match=r"fleet\.trusted of gpu-1:80: 'ab:cd' is not a SHA-256 fingerprint"
    ):
        check_nodes(["https://gpu-1:80"], FanoutPolicy(trusted={"gpu-1:80": "ab:cd"}))
    with pytest.raises(ConfigError, match="no nodes to ask"):
        check_nodes([], FanoutPolicy())
    with pytest.raises(ConfigError, match="plaintext"):
        check_nodes(["http://gpu-node-01:8080"], FanoutPolicy())
    check_nodes(["http://127.0.0.1:8080", "gpu-node-01:8080"], FanoutPolicy())
    check_nodes(["http://gpu-node-01:8080"], FanoutPolicy(require_tls=False))
    for odd in (
        "gpu-node-01",
        "gpu:99999",
        "a:b",
        "::1:8080",
        "a..b:80",
        "x" * 64 + ":80",
        "u:p@h:80",
        "h:80/x",
        "[]:80",
    ):
        with pytest.raises(ConfigError, match="is not a node"):
            check_nodes([odd], FanoutPolicy())
    check_nodes(
        ["[fd00::1]:8080", "[fe80::1%eth0]:8080", "https://gpu-node-01:8443/", "knöten-1:8080"],
        FanoutPolicy(),
    )
    with pytest.raises(AuthError, match="come together"):
        client_tls(None, Path("x"), None)


async def test_what_arrived_behind_a_silent_node_is_kept_when_asking_is_cut_short(
    tmp_path: Path,
) -> None:
    """The clock is measured after the answer, so the first measurement shows that it arrived."""
    looked = asyncio.Event()

    def clock_ns() -> int:
        looked.set()
        return time.time_ns()

    async with (
        node(database(tmp_path / "a.db"), "two", now_ns=clock_ns) as two,
        FaultProxy(host_and_port(two), swallow=True) as silent,
        Fanout(FanoutPolicy(timeout_s=10 * PATIENCE_S)) as fanout,
    ):

        async def read_all() -> list[NodeReply]:
            return [reply async for reply in fanout.ask([silent.address, two], SQL)]

        reading = asyncio.create_task(read_all())
        await asyncio.wait_for(looked.wait(), PATIENCE_S)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [(reply.name, reply.failure) for reply in fanout.unread()] == [("two", None)]


async def test_nodes_with_the_same_name_get_their_address(tmp_path: Path) -> None:
    """Machines of one image may share a host name; neither rows nor clocks may be mixed up."""
    db = database(tmp_path / "a.db")
    async with (
        node(db, "gpu") as one,
        node(db, "gpu", now_ns=lambda: time.time_ns() + 2 * 10**12) as two,
        Fanout(FanoutPolicy(timeout_s=PATIENCE_S)) as fanout,
    ):
        names = [reply.name async for reply in fanout.ask([one, two], SQL)]
        offsets = fanout.offsets([one, two])
    assert names == list(offsets) == ["gpu", f"gpu ({two})"]
    assert offsets["gpu"].offset_ms < 1_000_000 < offsets[f"gpu ({two})"].offset_ms


async def test_leaving_early_cancels_what_is_still_out(tmp_path: Path) -> None:
    async with (
        node(database(tmp_path / "a.db")) as address,
        FaultProxy(host_and_port(address), swallow=True) as silent,
    ):
        before = len(asyncio.all_tasks())
        async with Fanout(FanoutPolicy(timeout_s=30)) as fanout:
            replies = fanout.ask([address, silent.address], SQL)
            assert (await anext(replies)).failure is None
            await replies.aclose()
        assert len(asyncio.all_tasks()) <= before + 2  # the proxy's own side of the connections

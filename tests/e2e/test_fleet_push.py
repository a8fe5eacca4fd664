"""`ingero fleet-push` and `straggler-sink` as processes: start, messages and clean shutdown."""

import asyncio
import signal
import urllib.request
from pathlib import Path

import pytest
from tests.support.agent_process import connect
from tests.support.processes import BIN, process
from tests.support.scripted_fleet import Answer, scripted_fleet
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.straggler import StragglerResolved, StragglerState, encode_line
from ingero.transport.uds import LineServer

pytestmark = pytest.mark.e2e
LINE = {"X-Ingero-Threshold": "0.99", "X-Ingero-Quorum-Met": "true"}


async def test_an_agent_reports_its_episode_and_resolves_it_when_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(headers=LINE)
        async with process(
            str(BIN / "ingero"), "fleet-push", "--fleet-endpoint", fleet.url, "--fleet-cluster-id",
            "c",
            "--fleet-node-id", "n1", "--stub", "--fleet-push-interval", "1s", "--fleet-timeout",
            "1s",
            "--warmup-samples", "2",
            "--fleet-persist-path", str(tmp_path / "b.json"), "--remediate", "--remediate-socket",
            str(path),
            "--remediate-gid", "-1", "--confirmations", "1",
        ) as agent:  # fmt: skip
            reader, writer = await connect(path)
            first = await asyncio.wait_for(reader.readline(), PATIENCE_S)
            assert first.startswith(
                b'{"type":"straggler_state","node_id":"n1","cluster_id":"c","score":0.9'
            )
            agent.send_signal(signal.SIGTERM)
            rest = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            assert b'"type":"straggler_resolved"' in rest
            assert b'"reason":"shutdown"' in rest
            assert await asyncio.wait_for(agent.wait(), PATIENCE_S) == 0
            stderr = (await agent.communicate())[1].decode()
    assert "straggler_raised score=0.94 threshold=0.99 mode=fleet" in stderr  # F023
    assert not path.exists()
    assert (tmp_path / "b.json").is_file()


async def test_the_sink_counts_23_states_and_1_resolved_f011(tmp_path: Path) -> None:
    server = LineServer(tmp_path / "run" / "s.sock")
    await server.start()
    async with process(
        str(BIN / "straggler-sink"), "--socket-path", str(server.path), "--listen", "127.0.0.1:0"
    ) as sink:
        assert sink.stderr is not None
        address = ""
        while "metrics=" not in address:
            address = (await asyncio.wait_for(sink.stderr.readline(), PATIENCE_S)).decode()
        url = f"http://{address.rsplit('metrics=', 1)[1].strip()}/metrics"
        await until_async(lambda: server.consumers == 1)
        for sequence in range(23):
            server.send(
                encode_line(
                    StragglerState(
                        node_id="n1", cluster_id="c", score=0.5, threshold=0.8,
                        detection_mode="fleet",
                        dominant_signal="throughput", timestamp="t", sequence=sequence,
                    )
                )
            )  # fmt: skip
        await until_async(lambda: 'type="straggler_state"} 23' in _get(url))
        assert 'ingero_sink_active_stragglers{cluster_id="c",node_id="n1"} 1' in _get(url)
        server.send(encode_line(StragglerResolved(node_id="n1", cluster_id="c", timestamp="t")))
        await until_async(lambda: 'type="straggler_resolved"} 1' in _get(url))
        page = _get(url)
        assert "ingero_sink_parse_errors_total 0" in page
        assert "ingero_sink_active_stragglers{" not in page
        sink.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(sink.wait(), PATIENCE_S) == 0
    await server.close()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        return response.read().decode()


async def test_a_wrong_flag_is_one_sentence(tmp_path: Path) -> None:
    async with process(
        str(BIN / "ingero"), "fleet-push", "--fleet-cluster-id", "train", "--stub"
    ) as agent:
        stderr = (await agent.communicate())[1].decode()
        assert agent.returncode == 2
    assert stderr == (
        "ingero fleet-push: no Fleet to push to; give --fleet-endpoint HOST:PORT, or set "
        "fleet.endpoint in ingero.yaml\n"
    )

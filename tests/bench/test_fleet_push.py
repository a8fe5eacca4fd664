"""The parts of `make bench-fleet` that need no load generator work with the current code."""

from bench.fleet_push import tick_ms
from bench.grpc_load import closed_loop, open_loop
from bench.measure import free_port, server
from bench.push_bodies import bodies

from bench import fleet_push


def test_a_tick_is_measured() -> None:
    assert tick_ms(100) > 0


def test_calls_at_fixed_times_are_answered() -> None:
    port = free_port()
    with server(fleet_push.fleet_command(free_port(), port), port):
        address, (protobuf_bodies, _) = f"127.0.0.1:{port}", bodies(3)
        assert closed_loop(address, protobuf_bodies, 0.1) > 0
        run = open_loop(address, protobuf_bodies, 20, 0.5)
    assert run["done"] == 10
    assert 0 < run["p50_ms"] <= run["p99_ms"]

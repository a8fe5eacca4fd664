"""Who loses a connection where there are too many."""

from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from ingero.transport.connections import ConnectionRoom


def test_the_address_with_the_most_connections_loses_its_oldest() -> None:
    room = ConnectionRoom(limit=4)
    many, one = [Mock() for _ in range(5)], Mock()
    for transport in many[:4]:
        room.enter("10.0.0.1", transport)
    room.enter("10.0.0.2", one)
    many[0].abort.assert_called_once_with()
    assert (room.open, room.closed) == (4, 1)
    room.leave("10.0.0.1", many[0])  # the transport reports it a little later
    assert room.open == 4
    room.enter("10.0.0.1", many[4])
    many[1].abort.assert_called_once_with()
    one.abort.assert_not_called()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_the_room_is_never_exceeded_and_counts_what_is_open(steps: list[tuple[int, bool]]) -> None:
    room = ConnectionRoom(limit=8)
    held: list[tuple[str, Mock]] = []
    for address, leaves in steps:
        if leaves and held:
            room.leave(*held.pop(0))
        else:
            held.append((f"10.0.0.{address}", Mock()))
            room.enter(*held[-1])
        held = [(at, transport) for at, transport in held if not transport.abort.called]
        assert room.open == len(held) <= 8
    for one in held:
        room.leave(*one)
    assert room.open == 0
    assert room._by_address == {}

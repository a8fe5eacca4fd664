"""The hash of a stack and its stored form."""

from hypothesis import given
from hypothesis import strategies as st

from ingero.core.recording.stacks import Frame, decode_frames, encode_frames, stack_hash

text = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), max_size=8)
frames = st.lists(
    st.builds(
        Frame,
        st.integers(1, 2**64 - 1),
        text,
        text,
        st.integers(0, 9),
        text,
        text,
        st.integers(0, 2**31),
    ),
    max_size=4,
)


def test_published_hashes() -> None:
    assert stack_hash([Frame(0x7F1234), Frame(0x7F5678)]) == 6920367996829636137
    assert (
        stack_hash([Frame(symbol="cudaMalloc", file="/usr/lib/libcudart.so.12")])
        == -6744339748878663475
    )
    assert (
        stack_hash([Frame(py_file="train.py", py_func="forward", py_line=47)])
        == -4186893241991013130
    )


def test_the_hash_does_not_depend_on_addresses() -> None:
    assert stack_hash([Frame(1, "f"), Frame(2)]) == stack_hash([Frame(3, "f"), Frame(4)])
    assert stack_hash([Frame(1), Frame(2)]) != stack_hash([Frame(2), Frame(1)])


def test_stored_form_is_compact() -> None:
    stack = [
        Frame(5, "cudaMalloc", "/usr/lib/libcudart.so.12"),
        Frame(0x7F),
        Frame(9, file="libcublas.so.12"),
    ]
    assert encode_frames(stack) == (
        "",
        '[{"s":"cudaMalloc","f":"libcudart.so.12"},{"i":"0x9","f":"libcublas.so.12"}]',
    )
    assert encode_frames([Frame(0x10), Frame(0x20)]) == ('["0x10","0x20"]', "")


def test_frames_of_other_recorders_become_addresses_or_nothing() -> None:
    assert decode_frames('["0x10","zz"]', "{not json") == [Frame(0x10), Frame(0)]
    assert decode_frames('["0x10"]', "null") == [Frame(0x10)]
    assert decode_frames("[1]", '[{"s":7}]') == []
    assert decode_frames("", '[{"i":"zz","s":"f","new":1}]') == [Frame(0, "f")]
    assert decode_frames("", "[" * 100_000) == []


def test_a_frame_as_text() -> None:
    assert str(Frame(5, "cudaMalloc", "libcudart.so.12")) == "cudaMalloc (libcudart.so.12)"
    assert str(Frame(py_file="train.py", py_func="forward", py_line=47)) == "forward (train.py:47)"
    assert (str(Frame(0x7F)), str(Frame(9, file="libc.so"))) == ("0x7f", "0x9 (libc.so)")


@given(frames)
def test_resolved_frames_come_back(stack: list[Frame]) -> None:
    back = decode_frames(*encode_frames(stack))
    if any(frame.is_resolved for frame in stack):
        kept = [frame for frame in stack if frame.is_resolved]
        assert [(f.symbol, f.file, f.line, f.py_file, f.py_func, f.py_line) for f in back] == [
            (f.symbol, f.file, f.line, f.py_file, f.py_func, f.py_line) for f in kept
        ]
    else:
        assert [frame.ip for frame in back] == [frame.ip for frame in stack]

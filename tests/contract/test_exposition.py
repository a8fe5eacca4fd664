"""What Prometheus reads: names and texts that strangers chose included."""

from ingero.contract.exposition import gauge, render


def test_labels_show_what_a_terminal_would_act_upon() -> None:
    labels = (("host", 'a\x1b]0;x\x07\r\u202e\u200b\x9b1m\n\\"ü'),)
    assert render([gauge("up", "", [(labels, 1.0)])]).decode() == (
        "# TYPE up gauge\n"
        'up{host="a\\\\x1b]0;x\\\\x07\\\\r\\\\u202e\\\\u200b\\\\x9b1m\\n\\\\\\"ü"} 1\n'
    )


def test_labels_that_differ_in_what_is_not_seen_stay_different() -> None:
    values = [((("host", host),), 1.0) for host in ("a", "a\u200b", "a\u202e", "a\x1b")]
    lines = render([gauge("up", "", values)]).decode().splitlines()
    assert len(set(lines)) == len(values) + 1

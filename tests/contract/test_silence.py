"""Names and reasons of silences are one line of text."""

import msgspec
import pytest

from ingero.contract.silence import SilenceRequest


@pytest.mark.parametrize("text", ["gpu-7\n", "gpu\n7", "\x1b[2J", "", "x" * 501])
@pytest.mark.parametrize("field", ["target", "why", "cluster"])
def test_text_that_is_not_one_line_is_refused(field: str, text: str) -> None:
    fields = {"target": "gpu-7", "for_s": 60.0, "why": "maintenance", "cluster": "prod"}
    assert msgspec.convert(fields, SilenceRequest).target == "gpu-7"
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({**fields, field: text}, SilenceRequest)

"""What a recording of inputs begins with: the settings that verdicts depend on."""

import msgspec

from ingero.config.rates import RateTable, encode_rates
from ingero.core.verdict.policy import VerdictPolicy
from ingero.errors import ForeignFile, IngeroError
from ingero.storage.input_log import POLICY, RATES, encode_frame


def encode_preamble(rates: RateTable, policy: VerdictPolicy) -> bytes:
    """Return the first frames of a recording."""
    settings = msgspec.json.encode(policy)
    return encode_frame(RATES, 0.0, "", encode_rates(rates)) + encode_frame(
        POLICY, 0.0, "", settings
    )


def decode_policy(body: bytes) -> VerdictPolicy:
    """Read the policy of a recording; raise ForeignFile if it is none."""
    try:
        return msgspec.json.decode(body, type=VerdictPolicy)
    except (msgspec.DecodeError, IngeroError) as error:
        raise ForeignFile(f"the recorded settings of verdicts are damaged: {error}") from None

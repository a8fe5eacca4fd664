"""Marks for tests that compare a compiled part with its pure twin."""

import pytest

from ingero.compiled import missing_parts

needs_codecs = pytest.mark.skipif(
    "codecs" in missing_parts(), reason="the compiled codecs are not built or not in use here"
)
needs_fast_path = pytest.mark.skipif(
    "fast path" in missing_parts(), reason="the compiled fast path is not built or not in use here"
)

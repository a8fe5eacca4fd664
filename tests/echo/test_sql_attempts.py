"""Attempts of a caller with a scope: each ends as if the rows of others did not exist. F094"""

from collections.abc import Iterator

import pytest
from tests.support.sql_attempts import ATTEMPTS
from tests.support.sql_more_attempts import MORE_ATTEMPTS
from tests.support.two_tenants import CANARY, OURS, TwoTenants, keep_only_ours, two_tenants

TENANT_TABLES = (
    "events",
    "nccl_ops",
    "verdicts",
    "causal_chains",
    "node_metric_parts",
    "arrivals",
    "straggler_events",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TwoTenants, TwoTenants]]:
    """Our rows among those of others, and the same rows alone."""
    with (
        two_tenants(tmp_path_factory.mktemp("among")) as among,
        two_tenants(tmp_path_factory.mktemp("alone")) as alone,
    ):
        keep_only_ours(alone.store, TENANT_TABLES)
        yield among, alone


def test_attempts_see_nothing_of_others(both: tuple[TwoTenants, TwoTenants]) -> None:
    among, alone = both
    answered = 0
    for sql in (*ATTEMPTS, *MORE_ATTEMPTS):
        code, text = among.ask(sql, [OURS])
        assert (code, text) == alone.ask(sql, [OURS]), sql
        assert CANARY not in text.replace("canary1", ""), sql
        assert code in ("ok", "sql_refused", "bad_sql"), (sql, code)
        answered += code == "ok"
    assert answered > 120  # the comparison means something only for what is answered


def test_without_a_scope_the_same_statements_would_tell(
    both: tuple[TwoTenants, TwoTenants],
) -> None:
    """The attempts are worth trying: many answers differ where no scope hides rows."""
    among, alone = both
    differ = [sql for sql in ATTEMPTS if among.ask(sql, None) != alone.ask(sql, None)]
    assert len(differ) > 40

"""One table from the answers of many nodes."""

from ingero.core.rowmerge import RowMerge


def test_v9_the_first_columns_are_used_and_a_mismatch_is_reported() -> None:
    merge = RowMerge()
    assert merge.add("A", ["a", "b"], [[1, 2]]) == [["A", 1, 2]]
    assert merge.add("B", ["x", "y", "z"], [[3, 4, 5]]) == []
    assert merge.header == ["node", "a", "b"]
    assert merge.warnings == ["node B: its columns (x, y, z) differ from (a, b); left out"]
    assert (merge.is_partial, merge.is_total_failure) == (True, False)


def test_f135_rows_carry_their_node() -> None:
    merge = RowMerge()
    rows = [*merge.add("A", ["a"], [[1], [2]]), *merge.add("B", ["a"], [[3]])]
    assert rows == [["A", 1], ["A", 2], ["B", 3]]
    assert (merge.header[0], len(merge.nodes), merge.rows) == ("node", 2, 3)


def test_a_query_that_selects_node_gets_no_second_one() -> None:
    merge = RowMerge()
    assert merge.add("127.0.0.1:1", ["node", "n"], [["gpu-node-01", 4]]) == [["gpu-node-01", 4]]
    assert (merge.header, merge.nodes) == (["node", "n"], {"gpu-node-01"})


def test_empty_columns_contribute_nothing_silently() -> None:
    merge = RowMerge()
    assert merge.add("A", [], []) == []
    assert merge.warnings == []


def test_v9b_only_no_answer_at_all_is_a_failure() -> None:
    merge = RowMerge()
    merge.fail("A", "HTTP 500: x")
    assert merge.is_total_failure
    merge.add("B", ["a"], [])
    assert not merge.is_total_failure

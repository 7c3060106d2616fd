"""Tables of metrics and their rows."""

import numpy as np

from jaxagents.training.metric_tables import joined, pad_with_nan, stack, unstack

OLDER = {"kl": np.float32([0.1, 0.2])}
NEWER = {"kl": np.float32([0.3, 0.4]), "entropy": np.float32([1.0, 2.0])}


def test_rows_become_a_table_and_a_table_its_rows():
    table = stack([NEWER, NEWER])
    np.testing.assert_array_equal(table["kl"], np.float32([[0.3, 0.4], [0.3, 0.4]]))
    for row in unstack(table):
        assert row.keys() == NEWER.keys()
        np.testing.assert_array_equal(row["entropy"], [1.0, 2.0])
    assert stack([]) == {}
    assert unstack({}) == []


def test_metrics_that_older_rows_lack_are_nan_there():
    table = stack([OLDER, NEWER])
    np.testing.assert_array_equal(table["entropy"], [[np.nan, np.nan], [1.0, 2.0]])
    np.testing.assert_array_equal(table["kl"], np.float32([[0.1, 0.2], [0.3, 0.4]]))


def test_rows_of_nan_are_appended_for_blocks_that_did_not_run():
    rows = pad_with_nan([NEWER], 3)
    np.testing.assert_array_equal(stack(rows)["entropy"], [[1.0, 2.0], [np.nan] * 2, [np.nan] * 2])


def test_a_table_is_appended_to_an_older_one():
    table = joined(stack([OLDER]), stack([NEWER]))
    np.testing.assert_array_equal(table["entropy"], [[np.nan, np.nan], [1.0, 2.0]])

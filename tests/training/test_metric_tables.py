"""Tables of metrics and their rows."""

import numpy as np
import pytest

from jaxagents.training.named_arrays import Table

OLDER = {"kl": np.array([0.1, 0.2], np.float32)}
NEWER = {"kl": np.array([0.3, 0.4], np.float32), "entropy": np.array([1.0, 2.0], np.float32)}


def table_of(*rows):
    table = Table()
    for row in rows:
        table.append(row)
    return table


def test_rows_become_columns():
    table = table_of(NEWER, NEWER)
    columns = table.columns()
    assert columns.keys() == NEWER.keys()
    assert columns["kl"].dtype == np.float32
    np.testing.assert_array_equal(columns["kl"], [NEWER["kl"]] * 2)
    np.testing.assert_array_equal(table.last_row()["entropy"], [1.0, 2.0])
    assert (table_of().columns(), table_of().last_row(), Table({}).n_rows) == ({}, {}, 0)


@pytest.mark.parametrize("n_rows", [15, 16, 17, 100])
def test_tables_grow(n_rows):
    table = table_of(*({"kl": np.float32(i)} for i in range(n_rows)))
    assert table.n_rows == n_rows
    np.testing.assert_array_equal(table.columns()["kl"], np.arange(n_rows))


def test_metrics_that_older_rows_lack_are_nan_there():
    columns = table_of(OLDER, NEWER).columns()
    np.testing.assert_array_equal(columns["entropy"], [[np.nan, np.nan], [1.0, 2.0]])
    np.testing.assert_array_equal(columns["kl"], [OLDER["kl"], NEWER["kl"]])


def test_metrics_that_a_row_lacks_are_nan_there():
    table = table_of(NEWER, OLDER)
    np.testing.assert_array_equal(table.columns()["entropy"], [[1, 2], [np.nan] * 2])
    table.append(NEWER)
    np.testing.assert_array_equal(table.columns()["entropy"], [[1, 2], [np.nan] * 2, [1, 2]])


@pytest.mark.parametrize("n_rows", [3, 100])
def test_rows_of_nan_are_appended_for_blocks_that_did_not_run(n_rows):
    entropy = table_of(NEWER).columns(n_rows)["entropy"]
    np.testing.assert_array_equal(entropy, [[1.0, 2.0], *[[np.nan] * 2] * (n_rows - 1)])


def test_columns_are_copies():
    table = table_of(NEWER)
    table.columns()["kl"][:] = 9.0
    np.testing.assert_array_equal(table.columns()["kl"], NEWER["kl"][None])


def test_a_table_is_appended_to_an_older_one():
    table = table_of(OLDER)
    table.extend(table_of(NEWER).columns())
    columns = table.columns()
    table.extend({})
    assert table.columns().keys() == columns.keys()
    np.testing.assert_array_equal(columns["entropy"], [[np.nan, np.nan], [1.0, 2.0]])

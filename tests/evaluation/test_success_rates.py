"""Success over episodes: its mean, its interval and its text, by numbers derived by hand."""

import math

import numpy as np
import pytest

from jaxagents.environments.success import Success
from jaxagents.evaluation.success_rates import (
    bootstrap_interval,
    success_of_episodes,
    success_of_members,
    success_text,
    untold_infos,
    wilson_interval,
)

WON = Success("won", "battles won")
ENDS = Success("reached", "goals reached", others=("collided", "timed_out"))
ORDERS = Success("delivered", "orders delivered", "count")


def metrics(values, **others):
    return {"success": np.array(values)} | {
        f"info_{name}": np.array(each) for name, each in others.items()
    }


@pytest.mark.parametrize(
    ("n_won", "n", "low", "high"),
    [(87, 100, 0.790, 0.922), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (1, 2, 0.095, 0.905)],
)
def test_the_interval_of_a_share_is_wilsons(n_won, n, low, high):
    # The roots p of (share - p)² = z² p (1 - p) / n.
    found = wilson_interval(n_won / n, n)
    assert found == pytest.approx((low, high), abs=5e-4)
    for p in found:
        gap, variance = (n_won / n - p) ** 2, p * (1 - p) / n
        assert gap == pytest.approx(1.959964**2 * variance, abs=1e-12) or p in (0.0, 1.0)


def test_a_share_is_summarized_over_the_episodes_that_have_it():
    found = success_of_episodes(WON, metrics([1.0] * 87 + [0.0] * 13 + [math.nan] * 5))
    assert {name: found[name] for name in ("info", "title", "kind", "n_episodes")} == {
        "info": "won",
        "title": "battles won",
        "kind": "share",
        "n_episodes": 100,
    }
    assert (found["mean"], found["others"]) == (0.87, {})
    assert (found["low"], found["high"]) == wilson_interval(0.87, 100)
    assert success_text(found) == "battles won: 87.0 % (95 % interval 79.0 to 92.2)"


def test_other_ends_are_told_with_the_success():
    found = success_of_episodes(ENDS, metrics([0.5, 1], collided=[0.5, 0], timed_out=[0, 0]))
    assert found["others"] == {"collided": 0.25, "timed_out": 0.0}
    assert success_text(found).endswith("; collided 25.0 %; timed out 0.0 %")


def test_the_interval_of_a_count_is_a_bootstrap_of_its_mean():
    values = np.arange(100.0)
    found = success_of_episodes(ORDERS, metrics(values))
    # The standard error of the mean is sqrt((100² - 1) / 12 / 100) = 2.887.
    assert found["low"] == pytest.approx(49.5 - 1.96 * 2.887, abs=0.3)
    assert found["high"] == pytest.approx(49.5 + 1.96 * 2.887, abs=0.3)
    equal = success_of_episodes(ORDERS, metrics([4.2] * 8))
    assert (equal["low"], equal["mean"], equal["high"]) == pytest.approx((4.2, 4.2, 4.2))
    assert success_text(equal) == "orders delivered: 4.20 (95 % interval 4.20 to 4.20)"


def test_without_any_episode_there_are_no_numbers():
    found = success_of_episodes(WON, metrics([math.nan, math.nan]))
    assert (found["mean"], found["low"], found["high"], found["n_episodes"]) == (None,) * 3 + (0,)
    assert success_text(found) == "battles won: -"


def test_members_of_a_population_count_alike():
    members = [success_of_episodes(WON, metrics(each)) for each in ([1, 1], [1, 0], [0, 0])]
    found = success_of_members(members)
    assert (found["mean"], found["n_episodes"]) == (0.5, 6)
    assert (found["low"], found["high"]) == bootstrap_interval(np.array([1.0, 0.5, 0.0]))
    one = success_of_members(members[:1])
    assert (one["mean"], one["low"], one["high"]) == (1.0, None, None)


def test_infos_that_the_success_tells_are_not_told_again():
    means = {"episode_lengths": 3.0, "info_won": 0.5, "info_fled": 0.1, "info_steps": 4.0}
    assert untold_infos({"means": means}) == {"won": 0.5, "fled": 0.1, "steps": 4.0}
    success = {"info": "won", "others": {"fled": 0.1}}
    assert untold_infos({"means": means, "success": success}) == {"steps": 4.0}

"""Warnings of options that learnt less where they were measured."""

import csv
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.evaluation.bootstrap import interquartile_mean
from jaxagents.evaluation.comparison import Group, compare
from jaxagents.hyperparameters import OptimizerParams, as_arrays
from jaxagents.ippo.measured_losses import MEASURED_LOSSES, warn_of_measured_losses

FIGURES = Path(__file__).parents[2] / "benchmarks" / "learning_options.csv"
TASKS = {
    "simple_spread": "SimpleSpreadMPE",
    "speaker_listener": "SimpleSpeakerListenerMPE",
    "pendulum": "Pendulum-v1",
}
OF_TIME_LIMITS = ("bootstrap", "terminal")  # which other warnings name, on any environment
OPTIONS = {
    "learning rate linear": "learning_rate_schedule='linear'",
    "learning rate cosine": "learning_rate_schedule='cosine'",
    "ent_coeff 0": "ent_coeff=0.0",
    "not normalize_values": "normalize_values=False, scale_rewards=False",
    "not normalize_observations": "normalize_observations=False",
    "scale_rewards, not normalize_values": "normalize_values=False, scale_rewards=True",
    "shared_torso": "shared_torso=True",
    "rates 5e-4": "actor_optimizer_params.learning_rate=0.0005, "
    "critic_optimizer_params.learning_rate=0.0005",
}
"""By their names in the file of figures."""

HALF_RATES = ja.HyperParameters(
    actor_optimizer_params=OptimizerParams(learning_rate=5e-4),
    critic_optimizer_params=OptimizerParams(learning_rate=2.5e-4),
)


def finals() -> dict[tuple[str, str], np.ndarray]:
    """Return the final returns of the file, by task and setting."""
    returns: dict[tuple[str, str], dict[str, float]] = {}
    with FIGURES.open(newline="") as file:
        for row in csv.DictReader(file):
            of_seeds = returns.setdefault((row["task"], row["setting"]), {})
            of_seeds[row["seed"]] = float(row["final"])
    return {key: np.array(list(values.values())) for key, values in returns.items()}


def test_they_are_those_of_the_figures():
    returns = finals()
    expected = {}
    for (task, setting), own in returns.items():
        others = returns[task, "defaults"]
        interval = compare(Group("", own), Group("", others)).interval
        if setting not in OF_TIME_LIMITS and interval is not None and interval[1] < 0:
            figures = [round(float(interquartile_mean(each)), 1) for each in (own, others)]
            expected[TASKS[task], OPTIONS[setting]] = figures
    stated = {
        (loss.env, ", ".join(f"{key}={value!r}" for key, value in loss.option.items())): [
            loss.reached,
            loss.reached_by_defaults,
        ]
        for loss in MEASURED_LOSSES
    }
    assert stated == expected


@pytest.mark.parametrize(
    ("settings", "hyperparams", "option"),
    [
        ({"learning_rate_schedule": "linear"}, ja.HyperParameters(), "schedule='linear'"),
        ({"anneal_learning_rate": True}, ja.HyperParameters(), "^anneal_learning_rate=True: This"),
        ({}, ja.HyperParameters(ent_coeff=[0.0, 0.0]), r"^ent_coeff=\[0, 0\]: This"),
        (
            {},
            as_arrays(HALF_RATES),
            "^actor_optimizer_params.learning_rate=0.0005, "
            "critic_optimizer_params.learning_rate=0.00025: Rates of 5e-4",
        ),
    ],
)
def test_an_option_that_lost_is_warned_of(settings, hyperparams, option):
    config = ja.AgentConfig(n_steps=244, **settings)  # of 2,048 environment steps
    with pytest.warns(UserWarning, match=f"{option}.* learnt less than the defaults on "):
        warn_of_measured_losses("SimpleSpreadMPE", config, hyperparams)


@pytest.mark.parametrize(
    ("env_name", "n_steps", "settings"),
    [
        ("SimpleSpreadMPE", 244, {}),  # the defaults
        ("SimpleSpreadMPE", 248, {"learning_rate_schedule": "linear"}),  # longer
        ("SimpleSpreadMPE", 122, {"learning_rate_schedule": "linear"}),  # under half
        ("CartPole-v1", 244, {"learning_rate_schedule": "linear"}),  # where nothing was lost
        ("Pendulum-v1", 244, {"normalize_values": False, "scale_rewards": True}),
        (None, 244, {"learning_rate_schedule": "linear"}),
    ],
)
def test_nothing_else_is(env_name, n_steps, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ja.AgentConfig(n_steps=n_steps, **settings)
        warn_of_measured_losses(env_name, config, ja.HyperParameters())


def test_agents_warn():
    env, params = ja.make("gymnax/Pendulum-v1")
    config = ja.AgentConfig(n_steps=244, normalize_values=False, progress_bar=False)
    agent = ja.ContinuousIPPO(env, params, config)
    with pytest.warns(UserWarning, match="-407.2 instead of -147.6"):
        agent.init(jax.random.key(0), ja.HyperParameters())

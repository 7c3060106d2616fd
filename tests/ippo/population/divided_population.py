"""Trains populations on one and on four simulated devices, as a process of its own.

    python -m tests.ippo.population.divided_population compare CASE N_MEMBERS...
    python -m tests.ippo.population.divided_population resume DIRECTORY
    python -m tests.ippo.population.divided_population diverge
    python -m tests.ippo.population.divided_population select
    python -m tests.ippo.population.divided_population one_per_device

Prints a line of JSON: differences, relative to 1 or to the values, between both sides.
`tests.ippo.divided_training` says why minibatches hold the whole batch.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before jax is imported
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.ippo.population import training
from jaxagents.training.named_arrays import strip_keys, to_leaves
from tests.ippo.divided_training import largest_difference
from tests.probes import Pennies, heads

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "feed-forward": ({}, {}),
    "recurrent, normalised and early-stopped": (
        {
            "recurrent": "gru",
            "recurrent_chunk_length": 8,
            "normalize_observations": True,
            "normalize_values": True,
            "scale_rewards": True,
            "actor_epochs": 8,
        },
        {"kl_threshold": [1e-6, 1e-5, 3e-5, 1e-4]},
    ),
}
RATES, DISCOUNTS = [1e-3, 2e-3, 5e-4, 1e-3], [0.9, 0.95, 0.99, 0.97]


def make_agent(devices: int, **changes: Any) -> ja.IPPOBase:
    env, env_params = ja.make("hunting/discrete")
    layers = ja.Layers(hidden_sizes=(16,), memory_size=16)
    sizes = {"batch_size": 8, "minibatch_size": 8, "rollout_length": 8, "n_evals": 4}
    raw = {"normalize_observations": False, "normalize_values": False}
    config = ja.AgentConfig(
        **{"n_steps": 4, "eval_frequency": 2, **sizes, **raw, **changes},
        progress_bar=False,
        actor_layers=layers,
        critic_layers=layers,
        devices=devices,
    )
    return ja.DiscreteIPPO(env, env_params, config)


def keys_of(n_members: int) -> jax.Array:
    return jax.vmap(jax.random.key)(jnp.arange(n_members))


def hyperparams_of(n_members: int, **others: list[float]) -> ja.HyperParameters:
    """Return values that differ between members, ``[members, policies]``."""

    def first(values: list[float]) -> list[list[float]]:
        return [[value] for value in values[:n_members]]

    optimizer = ja.OptimizerParams(learning_rate=first(RATES), eps=1e-2)
    given = {name: first(values) for name, values in ({"gamma": DISCOUNTS} | others).items()}
    return ja.HyperParameters(
        actor_optimizer_params=optimizer, critic_optimizer_params=optimizer, **given
    )


def leaves_of(tree: Any) -> dict[str, np.ndarray]:
    return to_leaves(jax.device_get(strip_keys(tree)))


def difference(one: Any, other: Any) -> float:
    one, other = leaves_of(one), leaves_of(other)
    assert one.keys() == other.keys()
    return max(largest_difference(one[name], other[name]) for name in one)


def compare(case: str, *numbers: str) -> dict[str, Any]:
    """Train populations of several sizes; on one device a member does not depend on the size."""
    changes, others = CASES[case]
    sizes = {"n_steps": 20, "eval_frequency": 10, "rollout_length": 16}
    one, many = (make_agent(n, **sizes, **changes) for n in (1, 4))
    largest = max(map(int, numbers))
    expected = one.train(keys_of(largest), hyperparams_of(largest, **others))
    found: dict[str, Any] = {"epochs": np.asarray(expected[1]["actor_epochs"][:, 1:]).tolist()}
    for n in map(int, numbers):
        given = hyperparams_of(n, **others)
        runner, metrics = many.train(keys_of(n), given)
        np.testing.assert_array_equal(runner.hyperparams.gamma, np.float32(given.gamma))
        firsts = jax.tree.map(lambda leaf, n=n: leaf[:n], expected)
        found[str(n)] = [difference(firsts[0], runner), difference(firsts[1], metrics)]
    return found


def resume(directory: str) -> dict[str, Any]:
    """Train half a population on two devices, and the rest on four, on one, and on two."""
    given = hyperparams_of(4)
    whole = make_agent(2, checkpoint_dir=Path(directory) / "whole")
    expected = [*whole.train(keys_of(4), given), whole.restore("best")[0]]
    found = {}
    for n in (1, 2, 4):
        folder = Path(directory) / str(n)
        make_agent(2, n_steps=2, checkpoint_dir=folder).train(keys_of(4), given)
        agent = make_agent(n, checkpoint_dir=folder)
        # The best runner may be of the first half, whose schedules were those of a shorter run.
        resumed = agent.resume()
        best = agent.restore("best")[0].replace(n_steps=expected[2].n_steps)
        found[n] = difference(expected, [*resumed, best])
    return found


def diverge() -> dict[str, Any]:
    """Train a population of which two members stop by infinity; count the programs."""
    given = hyperparams_of(4).replace(vf_coeff=[0.5, 3e38, 0.5, 3e38])
    found = {}
    _, expected = make_agent(1).train(keys_of(4), given)
    n_compiled: dict[int, int] = {}
    for n in (2, 4):
        n_before = training._train_batch._cache_size()
        _, metrics = make_agent(n).train(keys_of(4), given)
        found[n] = difference(expected, metrics)
        n_compiled[n] = training._train_batch._cache_size() - n_before
    has_stopped = np.isnan(np.asarray(expected["returns"])).all(axis=(2, 3))
    return {"differences": found, "stopped": has_stopped.tolist(), "programs": n_compiled}


def select() -> dict[str, Any]:
    """Select among members on one device and on several."""
    halving = ja.SuccessiveHalving(n_blocks=4, factor=2)
    evolving = ja.PopulationBasedTraining(
        {"gamma": (0.9, 0.99), "actor_optimizer_params.learning_rate": (1e-4, 1e-2)}
    )
    found = {}
    for rule in (halving, evolving):
        expected = make_agent(1, n_steps=8).train(keys_of(4), hyperparams_of(4), selection=rule)
        parents = np.asarray(expected[1]["parents"])
        found[type(rule).__name__] = [
            difference(
                expected[1],
                make_agent(n, n_steps=8).train(keys_of(4), hyperparams_of(4), selection=rule)[1],
            )
            for n in (2, 4)
        ]
        assert len(np.unique(parents, axis=1).T) > 1  # it has changed something
    return found


def one_per_device() -> dict[str, Any]:
    """Train what cannot be divided, each member on a device of its own."""
    side = ja.Side(Pennies(), [0], opponents=heads)
    found = {}
    for name, env, changes in (
        ("opponents", side, {}),
        ("replay", Pennies(), {"replay_updates": 1, "advantages": "vtrace"}),
    ):
        results = []
        for n in (1, 4):
            config = ja.AgentConfig(
                n_steps=4,
                batch_size=6,
                minibatch_size=3,
                rollout_length=4,
                eval_frequency=2,
                n_evals=3,
                progress_bar=False,
                devices=n,
                **changes,
            )
            agent = ja.DiscreteIPPO(env, None, config)
            results.append(agent.train(keys_of(4), hyperparams_of(4)))
        found[name] = difference(*results)
    return found


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)))

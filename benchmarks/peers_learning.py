"""What agents learn beside a peer's recipe, in as many environment steps.

Three sides per environment: the peer in its own hyperparameters, ours in the same as far as options
allow, and ours in our own defaults. Each trains every seed; the final policies play 100 sampled
episodes. What remains different: JaxMARL and rejax standardise advantages per minibatch. JaxMARL
has one optimizer for actor and critic, which share a GRU in its recurrent recipe. rejax clips each
element of a gradient, ours its norm.

    python benchmarks/peers/make_environment.py rejax        # once
    python benchmarks/peers_learning.py rejax --seeds 8
    python benchmarks/peers_learning.py jaxmarl --seeds 8    # needs no environment of its own
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jaxmarl_recurrent_recipe
import numpy as np
from matrix.report import comparison
from peers import jaxmarl_side, rejax_side

import jaxagents as ja
from jaxagents.evaluation.bootstrap import interquartile_mean
from jaxagents.experiments.make_agent import agent_class

N_EPISODES = 100


class Peer(NamedTuple):
    """How a peer trains, and how our agent trains in the peer's hyperparameters."""

    tasks: Mapping[str, int]  # environment steps
    train: Callable[..., tuple[np.ndarray, Any]]
    configure: Callable[..., tuple[ja.AgentConfig, ja.HyperParameters]]
    defaults: Mapping[str, Any] = {}  # of our own side


PEERS = {
    "rejax": Peer(rejax_side.TASKS, rejax_side.train, rejax_side.configure),
    "jaxmarl": Peer(jaxmarl_side.TASKS, jaxmarl_side.train, jaxmarl_side.configure),
    "jaxmarl_recurrent": Peer(
        jaxmarl_side.TASKS,
        partial(jaxmarl_side.train, module=jaxmarl_recurrent_recipe),
        partial(jaxmarl_side.configure, module=jaxmarl_recurrent_recipe),
        {"recurrent": "gru"},
    ),
}


def ours(n_steps: int, **changes: Any) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent by its defaults."""
    config = ja.AgentConfig(n_steps=1, n_evals=0, progress_bar=False, **changes)
    n_updates = n_steps // config.steps_per_update
    return dataclasses.replace(config, n_steps=n_updates), ja.HyperParameters()


def train_ours(
    task: str, config: ja.AgentConfig, hyperparams: ja.HyperParameters, n_seeds: int
) -> np.ndarray:
    """Return the final returns by seed, means over actors."""
    env, params = ja.make(task)
    agent = agent_class(env, params)(env, params, config)
    finals = []
    for seed in range(n_seeds):
        runner, _ = agent.train(jax.random.key(seed), hyperparams)
        metrics: Any = agent.eval(jax.random.key(1000 + seed), N_EPISODES, False, runner)
        finals.append(float(np.mean(metrics["returns"])))
    return np.array(finals)


def main() -> None:
    """Print a line per environment as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tasks", nargs="+", help="environments; default: all that are compared")
    arguments = parser.parse_args()
    peer = PEERS[arguments.peer]
    if unknown := set(arguments.tasks or ()) - peer.tasks.keys():
        parser.error(f"no task {', '.join(unknown)}; choose from {', '.join(peer.tasks)}")
    print(f"| Environment | Steps | {arguments.peer} | Ours, the same | Ours | Better |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task in arguments.tasks or peer.tasks:
        n_steps = peer.tasks[task]
        theirs, recipe = peer.train(task, n_steps, arguments.seeds)
        sides = [
            train_ours(task, *configuration, arguments.seeds)
            for configuration in (peer.configure(recipe, n_steps), ours(n_steps, **peer.defaults))
        ]
        cells = [
            f"{float(interquartile_mean(side)):.1f} (worst {side.min():.1f})"
            for side in (theirs, *sides)
        ]
        better = ", ".join(f"{100 * comparison(side, theirs).probability:.0f} %" for side in sides)
        print(f"| {task} | {n_steps:,} | {' | '.join(cells)} | {better} |", flush=True)


if __name__ == "__main__":
    main()

"""What agents learn beside a peer's recipe, in as many environment steps.

Three sides per task: the peer with its own hyperparameters, ours with the same as far as options
allow, and ours with our own defaults. Each trains every seed. The final policies of rejax and ours
play 100 sampled episodes; of JaxMARL's scripts, the sampled episodes of the last ten updates count.
One difference from ours in the textbook's setting (`textbook_ppo`) remains: actor and critic share
layers in JaxMARL's recurrent scripts.

    python benchmarks/peers/make_environment.py rejax        # once
    python benchmarks/peers_learning.py rejax --seeds 8
    git clone https://github.com/FLAIROx/JaxMARL build/peers/JaxMARL    # once; revision c793d09
    python benchmarks/peers_learning.py jaxmarl --seeds 8
"""

import argparse
import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matrix.report import comparison
from peers import jaxmarl_side, rejax_side

import jaxagents as ja
from jaxagents.evaluation.bootstrap import interquartile_mean
from jaxagents.experiments.make_agent import agent_class

N_EPISODES = 100
RESULTS = Path(__file__).parent / "peers_learning.csv"
PEERS: Mapping[str, Any] = {"rejax": rejax_side, "jaxmarl": jaxmarl_side}


def ours(n_steps: int, **changes: Any) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent with its defaults."""
    config = ja.AgentConfig(n_steps=1, n_evals=0, progress_bar=False, **changes)
    n_updates = n_steps // config.steps_per_update
    return dataclasses.replace(config, n_steps=n_updates), ja.HyperParameters()


def train_ours(
    task: Any, config: ja.AgentConfig, hyperparams: ja.HyperParameters, n_seeds: int
) -> np.ndarray:
    """Return the final returns by seed, means over actors."""
    env, params = ja.make(task.env, **task.env_kwargs)
    agent = agent_class(env, params)(env, params, config)
    finals = []
    for seed in range(n_seeds):
        runner, _ = agent.train(jax.random.key(seed), hyperparams)
        metrics: Any = agent.eval(jax.random.key(1000 + seed), N_EPISODES, False, runner)
        finals.append(float(np.mean(metrics["returns"])))
    return np.array(finals)


def append(task: str, peer: str, *sides: np.ndarray) -> None:
    """Append each seed's returns to the file of results."""
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(("task", "peer", "seed", "theirs", "ours, the same", "ours"))
        for seed, finals in enumerate(zip(*sides, strict=True)):
            writer.writerow((task, peer, seed, *(f"{final:.6g}" for final in finals)))


def main() -> None:
    """Print a line per task as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tasks", nargs="+", help="default: all that are compared")
    arguments = parser.parse_args()
    peer = PEERS[arguments.peer]
    if unknown := set(arguments.tasks or ()) - peer.TASKS.keys():
        parser.error(f"no task {', '.join(unknown)}; choose from {', '.join(peer.TASKS)}")
    print(f"| Task | Steps | Seeds | {arguments.peer} | Ours, the same | Ours | Better |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.tasks or peer.TASKS:
        task = peer.TASKS[name]
        theirs, sizes = peer.train(name, arguments.seeds)
        sides = [
            train_ours(task, *configuration, arguments.seeds)
            for configuration in (
                peer.configure(name, sizes),
                ours(task.n_steps, **task.defaults),
            )
        ]
        append(name, arguments.peer, theirs, *sides)
        cells = [
            f"{float(interquartile_mean(side)):.2f} (worst {side.min():.2f})"
            for side in (theirs, *sides)
        ]
        better = ", ".join(f"{100 * comparison(side, theirs).probability:.0f} %" for side in sides)
        print(
            f"| {name} | {task.n_steps:,} | {arguments.seeds} | {' | '.join(cells)} | {better} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

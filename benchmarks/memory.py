"""Does a memory remember? A T-maze, trained with each recurrent cell and without one.

python benchmarks/memory.py --corridor 20
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.config import Layers

N_SEEDS = 3
LAYERS = Layers(hidden_sizes=(32,), memory_size=32)
FORWARD, UP, DOWN = range(3)


class TMaze(ja.Environment):
    """Walk a corridor, and turn at its end to the side that a sign showed at its start.

    Observations: the sign (+1 or -1, 0 where there is none) and whether this is the end. A step
    forward costs nothing and anything else in the corridor 0.1, without moving; the right side
    earns 1. The optimum is 1, and 0.5 without a memory.

    Source: Bakker 2001, "Reinforcement learning with long short-term memory".
    """

    n_actors = 1

    def __init__(self, corridor: int):
        self._corridor = corridor

    def action_space(self, params: Any) -> ja.Discrete:
        """Forward, up or down."""
        return ja.Discrete(3)

    def reset_env(self, rng, params):
        """Begin at the sign."""
        state = {"up": jax.random.bernoulli(rng), "position": jnp.zeros((), jnp.int32)}
        return self._observe(state), state

    def step_env(self, rng, state, action, params):
        """Walk, or turn."""
        at_end = state["position"] == self._corridor
        right = action[0] == jnp.where(state["up"], UP, DOWN)
        idle = jnp.where(action[0] == FORWARD, 0.0, -0.1)
        reward = jnp.where(at_end, right.astype(jnp.float32), idle)
        moves = (action[0] == FORWARD) & ~at_end
        state = {**state, "position": state["position"] + moves}
        turned = at_end & (action[0] != FORWARD)
        return self._observe(state), state, reward[None], turned[None], jnp.zeros(1, bool), {}

    def _observe(self, state):
        sign = jnp.where(state["position"] == 0, jnp.where(state["up"], 1.0, -1.0), 0.0)
        at_end = (state["position"] == self._corridor).astype(jnp.float32)
        return jnp.stack([sign, at_end])[None]


def final_return(cell: Any, corridor: int, n_steps: int, seed: int) -> float:
    """Train from a seed; return the mean over greedy episodes."""
    config = ja.AgentConfig(
        n_steps=n_steps,
        batch_size=32,
        minibatch_size=8,
        rollout_length=64,
        eval_frequency=n_steps,
        n_evals=200,
        initial_evaluation=False,
        max_episode_steps=4 * corridor,
        anneal_learning_rate=True,
        recurrent=cell,
        actor_layers=LAYERS,
        critic_layers=LAYERS,
        progress_bar=False,
    )
    adam = ja.OptimizerParams(learning_rate=5e-3)
    hyperparams = ja.HyperParameters(actor_optimizer_params=adam, critic_optimizer_params=adam)
    agent = ja.DiscreteIPPO(TMaze(corridor), None, config)
    _, metrics = agent.train(jax.random.key(seed), hyperparams)
    return float(np.mean(metrics["returns"][-1]))


def main() -> None:
    """Print each cell's returns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corridor", type=int, default=20)
    parser.add_argument("--n-steps", type=int, default=200)
    arguments = parser.parse_args()
    for cell in ("gru", "lstm", "mingru", None):
        returns = [
            final_return(cell, arguments.corridor, arguments.n_steps, seed)
            for seed in range(N_SEEDS)
        ]
        text = " ".join(f"{each:6.3f}" for each in returns)
        print(f"{cell or 'none':7}{text}   worst {min(returns):.3f}", flush=True)


if __name__ == "__main__":
    main()

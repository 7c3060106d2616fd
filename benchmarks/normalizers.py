"""Where does each normalizer help? Learning curves with and without, on gymnax's own scales.

python benchmarks/normalizers.py
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.experiments.make_agent import agent_class

N_SEEDS = 3
NORMALIZERS = ("normalize_observations", "normalize_values", "scale_rewards")


class InMillimetres(ja.Environment):
    """gymnax's CartPole, its positions and velocities in millimetres."""

    n_actors = 1

    def __init__(self):
        self._env, self.params = ja.make("gymnax/CartPole-v1")

    def action_space(self, params: Any) -> Any:
        """Return the action space as it is."""
        return self._env.action_space(params)

    def reset_env(self, rng, params):
        """Begin, seen in millimetres."""
        features, state = self._env.reset_env(rng, params)
        return self._scaled(features), state

    def step_env(self, rng, state, action, params):
        """Push the cart, seen in millimetres."""
        features, *rest = self._env.step_env(rng, state, action, params)
        return self._scaled(features), *rest

    def _scaled(self, features):
        return features * jnp.array([1e3, 1e3, 1.0, 1.0])


def make(name: str) -> tuple[Any, Any]:
    """Make an environment by its id, or the one above."""
    if name != "CartPole in millimetres":
        return ja.make(name)
    env = InMillimetres()
    return env, env.params


def curves(name: str, n_steps: int, **options: Any) -> np.ndarray:
    """Train all seeds at once; return the mean returns ``[seeds, evaluations]``."""
    env, env_params = make(name)
    config = ja.AgentConfig(
        n_steps=n_steps,
        batch_size=16,
        minibatch_size=4,
        rollout_length=128,
        eval_frequency=n_steps // 5,
        n_evals=50,
        anneal_learning_rate=True,
        progress_bar=False,
        **options,
    )
    adam = ja.OptimizerParams(learning_rate=1e-3)
    hyperparams = ja.HyperParameters(
        ent_coeff=0.0, actor_optimizer_params=adam, critic_optimizer_params=adam
    )
    agent = agent_class(env, env_params)(env, env_params, config)
    rngs = jax.random.split(jax.random.key(0), N_SEEDS)
    _, metrics = jax.vmap(agent.train, in_axes=(0, None))(rngs, hyperparams)
    return np.asarray(metrics["returns"]).mean(axis=(2, 3))


def main() -> None:
    """Print each seed's curve and the mean of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--envs", nargs="*", default=["gymnax/Pendulum-v1", "CartPole in millimetres"]
    )
    parser.add_argument("--n-steps", type=int, default=100)
    arguments = parser.parse_args()
    for env_id in arguments.envs:
        print(f"{env_id}, after each fifth of {arguments.n_steps} updates of 2,048 steps")
        for name in (None, *NORMALIZERS):
            returns = curves(env_id, arguments.n_steps, **({name: True} if name else {}))
            for label, curve in [
                *((f"seed {seed}", curve) for seed, curve in enumerate(returns)),
                ("mean", returns.mean(axis=0)),
            ]:
                numbers = "".join(f"{each:10.1f}" for each in curve)
                print(f"  {name or 'none':24}{label:8}{numbers}", flush=True)


if __name__ == "__main__":
    main()

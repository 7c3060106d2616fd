"""Where does each normalizer help? Learning curves with and without, on gymnax's own scales.

python benchmarks/normalizers.py
"""

import argparse
from typing import Any

import jax
import numpy as np

import jaxagents as ja
from jaxagents.environments.spaces import Discrete, as_space

N_SEEDS = 3
NORMALIZERS = ("normalize_observations", "normalize_values", "scale_rewards")


def curves(env_id: str, n_steps: int, **options: Any) -> np.ndarray:
    """Train all seeds at once; return the mean returns ``[seeds, evaluations]``."""
    env, env_params = ja.make(env_id)
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
    discrete = isinstance(as_space(env.action_space(env_params)), Discrete)
    agent = (ja.DiscreteIPPO if discrete else ja.ContinuousIPPO)(env, env_params, config)
    rngs = jax.random.split(jax.random.key(0), N_SEEDS)
    _, metrics = jax.vmap(agent.train, in_axes=(0, None))(rngs, hyperparams)
    return np.asarray(metrics["returns"]).mean(axis=(2, 3))


def main() -> None:
    """Print each seed's curve and the mean of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="*", default=["gymnax/Pendulum-v1", "gymnax/Acrobot-v1"])
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

"""Learning of Brax's own PPO on a Brax robot, to compare with this package's at equal steps.

Settings are those of Brax's notebook ``training.ipynb`` for the ant and the cheetah; it trains the
walker with another algorithm, so it has the cheetah's here. Prints the return of the final policy.

    python benchmarks/peers/brax_learning.py ant --steps 10000000
"""

import argparse
import time

import jax
import jax.numpy as jnp

# Brax 0.14.2 calls a function that jax 0.10 has removed.
jax.device_put_replicated = lambda tree, devices: jax.tree.map(
    lambda leaf: jnp.stack([leaf] * len(devices)), tree
)

from brax import envs  # noqa: E402
from brax.training.agents.ppo import train as ppo  # noqa: E402

_ANT = {
    "reward_scaling": 10,
    "unroll_length": 5,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "discounting": 0.97,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "num_envs": 4096,
    "batch_size": 2048,
}
_CHEETAH = {
    "reward_scaling": 1,
    "unroll_length": 20,
    "num_minibatches": 32,
    "num_updates_per_batch": 8,
    "discounting": 0.95,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-3,
    "num_envs": 2048,
    "batch_size": 512,
}
SETTINGS = {"ant": _ANT, "halfcheetah": _CHEETAH, "walker2d": _CHEETAH}


def main() -> None:
    """Train, and print the evaluations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("robot", choices=sorted(SETTINGS))
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="spring")
    args = parser.parse_args()
    started = time.perf_counter()

    def show(n_steps: int, metrics: dict) -> None:
        mean, std = metrics["eval/episode_reward"], metrics["eval/episode_reward_std"]
        seconds = time.perf_counter() - started
        print(f"{n_steps:,} steps: {mean:.0f} (std {std:.0f}), {seconds:.0f} s", flush=True)

    ppo.train(
        envs.get_environment(args.robot, backend=args.backend),
        num_timesteps=args.steps,
        episode_length=1000,
        normalize_observations=True,
        num_evals=5,
        seed=args.seed,
        progress_fn=show,
        **SETTINGS[args.robot],
    )


if __name__ == "__main__":
    main()

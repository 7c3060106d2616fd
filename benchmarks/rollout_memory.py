"""Memory of an update beside the formula of docs/capacity.md, on a CPU.

What XLA sets aside for an update's intermediate values, as compiled for short trainings, against 12
bytes times (observation size + 0.8 * widest hidden layer + 4) for each sample of the rollout.

    python benchmarks/rollout_memory.py
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

import jaxagents as ja
from jaxagents.compiler import jit as compilation
from jaxagents.config import Layers
from jaxagents.ippo.training_run import TrainingRun

SPREAD = "jaxmarl/MPE_simple_spread_v3"
CASES: tuple[tuple[str, int, dict[str, Any], dict[str, Any]], ...] = (
    (SPREAD, 16, {}, {}),
    (SPREAD, 256, {}, {}),
    (SPREAD, 64, {"num_agents": 8, "num_landmarks": 8}, {}),
    (SPREAD, 64, {}, {"minibatch_size": 64}),
    (SPREAD, 64, {}, {"parameter_sharing": "independent"}),
    (SPREAD, 64, {}, {"hidden_sizes": (32, 32)}),
    (SPREAD, 64, {}, {"hidden_sizes": (128, 128, 128)}),
    (SPREAD, 64, {}, {"hidden_sizes": (256, 64)}),
    ("gymnax/CartPole-v1", 64, {}, {}),
    ("hunting/discrete", 64, {}, {}),
)


def measure(env_id: str, n_envs: int, env_kwargs: dict[str, Any], choices: dict[str, Any]) -> str:
    """Compile an update and compare."""
    env, env_params = ja.make(env_id, **env_kwargs)
    hidden_sizes = choices.get("hidden_sizes", (64, 64))
    others = {name: value for name, value in choices.items() if name != "hidden_sizes"}
    layers = Layers(hidden_sizes=hidden_sizes)
    config = ja.AgentConfig(
        n_steps=1,
        batch_size=n_envs,
        **{"minibatch_size": n_envs // 4, **others},
        actor_layers=layers,
        critic_layers=layers,
    )
    agent = ja.DiscreteIPPO(env, env_params, config)
    runner = jax.eval_shape(agent.init, jax.random.key(0), ja.HyperParameters())
    n_updates = jax.ShapeDtypeStruct((), jnp.int32)
    updates = jax.eval_shape(
        agent.run.open_block, jax.eval_shape(agent.run.first_block, runner), n_updates
    )
    update_repeatedly = jax.jit(
        TrainingRun.update_repeatedly.__wrapped__,
        static_argnames="self",
        compiler_options=compilation._FEW_ARRAYS,
    )
    program = update_repeatedly.lower(agent.run, updates).compile()
    measured = program.memory_analysis().temp_size_in_bytes
    size = math.prod(agent.environments.observation.features.shape[1:])
    n_samples = config.steps_per_update * agent.environments.n_actors
    formula = 12 * (size + 0.8 * max(hidden_sizes) + 4) * n_samples
    return (
        f"{env_id:30} {n_envs:4} environments {env_kwargs or ''}{choices or ''}: "
        f"{measured / 1e6:.1f} MB, formula {formula / 1e6:.1f} MB ({formula / measured - 1:+.0%})"
    )


def main() -> None:
    """Print a line for each case."""
    for case in CASES:
        print(measure(*case), flush=True)


if __name__ == "__main__":
    main()

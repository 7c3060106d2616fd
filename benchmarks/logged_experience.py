"""Learning from logged rollouts alone, by V-trace: CartPole from a medium policy's experience.

    python benchmarks/logged_experience.py --seeds 3

A policy is trained until its sampled return exceeds 80. Its rollouts are logged as numpy arrays. A
new agent learns from them without a step of the environment.
"""

import argparse
from typing import Any

import jax
import numpy as np

import jaxagents as ja

MEDIUM = 80.0
N_EPISODES = 100


def mean_return(agent: ja.IPPOBase, runner: ja.Runner, greedy: bool) -> float:
    metrics: Any = agent.eval(jax.random.key(1), N_EPISODES, greedy, runner)
    return float(np.mean(metrics["returns"]))


def log_rollouts(agent: ja.IPPOBase, runner: ja.Runner, n_rollouts: int) -> list[ja.Rollout]:
    """Act with a policy that does not learn, and keep its rollouts as numpy arrays."""
    step_environments = jax.jit(agent.environments.step)
    observation, env_state = runner.observation, runner.env_state
    rollouts = []
    for index in range(n_rollouts):
        runner = runner.replace(rng=jax.random.key(index))
        carry, records, steps = None, [], []
        for _ in range(agent.config.rollout_length):
            action, record = agent.act(runner, observation, carry)
            step, env_state = step_environments(record.rng, env_state, action)
            carry, observation = record.carry, step.observation
            records.append(record)
            steps.append(step)
        names = ("reward", "terminated", "truncated", "final_observation")
        results = {name: [getattr(step, name) for step in steps] for name in names}
        rollout = ja.Rollout.from_records(records, last_observation=observation, **results)
        rollouts.append(jax.device_get(rollout))
    return rollouts


def main() -> None:
    """Print the returns of both policies, by seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=50)
    parser.add_argument("--passes", type=int, default=4)
    arguments = parser.parse_args()
    env, params = ja.make("gymnax/CartPole-v1")
    config = ja.AgentConfig(n_steps=1, n_evals=0, progress_bar=False, advantages="vtrace")
    agent, hyperparams = ja.DiscreteIPPO(env, params, config), ja.HyperParameters()
    for seed in range(arguments.seeds):
        behaviour = agent.init(jax.random.key(seed), hyperparams)
        while mean_return(agent, behaviour, greedy=False) < MEDIUM:
            behaviour, _ = agent.step(behaviour)
        logged = log_rollouts(agent, behaviour, arguments.rollouts)
        learner = agent.init(jax.random.key(100 + seed), hyperparams)
        order = np.random.default_rng(seed)
        for _ in range(arguments.passes):
            for index in order.permutation(len(logged)):
                learner, _ = agent.update(learner, logged[index])
        before, after = (mean_return(agent, each, greedy=False) for each in (behaviour, learner))
        greedy = mean_return(agent, learner, greedy=True)
        print(
            f"seed {seed}: behaviour {before:.1f}; learnt from it {after:.1f}, greedy "
            f"{greedy:.1f} ({after / before:.2f} times)",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Learning from logged rollouts alone: CartPole from another policy's experience.

    python benchmarks/logged_experience.py --seeds 3
    python benchmarks/logged_experience.py --seeds 3 --clone --behaviour 450

A policy is trained until its sampled return exceeds 80, or another number. Its rollouts are logged
as numpy arrays. A new agent learns from them without a step of the environment: by V-trace, or by
cloning their actions.
"""

import argparse
from typing import Any

import jax
import numpy as np

import jaxagents as ja

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


def learn_off_policy(
    agent: ja.IPPOBase, learner: ja.Runner, logged: list[ja.Rollout], n_passes: int, seed: int
) -> ja.Runner:
    order = np.random.default_rng(seed)
    for _ in range(n_passes):
        for index in order.permutation(len(logged)):
            learner, _ = agent.update(learner, logged[index])
    return learner


def main() -> None:
    """Print the returns of both policies, by seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=50)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--behaviour", type=float, default=80.0, help="return of the policy")
    parser.add_argument("--clone", action="store_true")
    arguments = parser.parse_args()
    env, params = ja.make("gymnax/CartPole-v1")
    config = ja.AgentConfig(n_steps=1, n_evals=0, progress_bar=False, advantages="vtrace")
    agent, hyperparams = ja.DiscreteIPPO(env, params, config), ja.HyperParameters()
    for seed in range(arguments.seeds):
        behaviour = agent.init(jax.random.key(seed), hyperparams)
        while mean_return(agent, behaviour, greedy=False) < arguments.behaviour:
            behaviour, _ = agent.step(behaviour)
        logged = log_rollouts(agent, behaviour, arguments.rollouts)
        learner = agent.init(jax.random.key(100 + seed), hyperparams)
        if arguments.clone:
            learner, metrics = agent.pretrain(learner, logged, n_epochs=arguments.passes)
            print({name: f"{float(each[-1, 0]):.3f}" for name, each in metrics.items()})
        else:
            learner = learn_off_policy(agent, learner, logged, arguments.passes, seed)
        before, after = (mean_return(agent, each, greedy=False) for each in (behaviour, learner))
        greedy = mean_return(agent, learner, greedy=True)
        print(
            f"seed {seed}: behaviour {before:.1f}; learnt from it {after:.1f}, greedy "
            f"{greedy:.1f} ({after / before:.2f} times)",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Three ways to train, which end with the same parameters, bit for bit.

python examples/three_loops.py

`in_one_call` is how most runs are trained. `step_by_step` runs the loop over updates itself, and
`all_by_hand` also each step of the environments, which may then be a game, a robot or a service:
anything that returns arrays.
"""

import jax
import numpy as np

import jaxagents as ja


def in_one_call(agent, rng, hyperparams):
    """Train with one call."""
    runner, _ = agent.train(rng, hyperparams)
    return runner


def step_by_step(agent, rng, hyperparams):
    """Do one update after the other."""
    runner = agent.init(rng, hyperparams)
    for _ in range(agent.config.n_steps):
        runner, _ = agent.step(runner)
    return runner


def all_by_hand(agent, rng, hyperparams):
    """Step the environments by hand, and learn from what they returned."""
    runner, step_environments = agent.init(rng, hyperparams), jax.jit(agent.environments.step)
    observation, env_state = runner.observation, runner.env_state
    for _ in range(agent.config.n_steps):
        carry, records, steps = None, [], []
        for _ in range(agent.config.rollout_length):
            action, record = agent.act(runner, observation, carry)
            step, env_state = step_environments(record.rng, env_state, action)
            carry = agent.reset_carry(record.carry, step.begins)
            observation = step.observation
            records.append(record)
            steps.append(step)
        rollout = ja.Rollout.from_records(
            records,
            reward=[step.reward for step in steps],
            terminated=[step.terminated for step in steps],
            truncated=[step.truncated for step in steps],
            active=[step.active for step in steps],
            episode_over=[step.episode_over for step in steps],
            final_observation=[step.final_observation for step in steps],
            last_observation=observation,
            last_memory=carry.memory,
            last_active=env_state.active,
        )
        runner, _ = agent.update(runner, rollout)
    return runner


def main():
    """Train in all three ways, and compare."""
    env, env_params = ja.make("gymnax/CartPole-v1")
    config = ja.AgentConfig(n_steps=3, rollout_length=32, n_evals=0, progress_bar=False)
    agent = ja.DiscreteIPPO(env, env_params, config)
    rng, hyperparams = jax.random.key(0), ja.HyperParameters()
    first, *others = (
        jax.tree.leaves(jax.device_get(loop(agent, rng, hyperparams).actor.params))
        for loop in (in_one_call, step_by_step, all_by_hand)
    )
    for other in others:
        assert all(map(np.array_equal, first, other))
    print("The three loops end with the same parameters.")


if __name__ == "__main__":
    main()

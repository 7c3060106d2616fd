"""Speed of environments in worker processes.

Steps alone, by number of workers, beside Gymnasium's `AsyncVectorEnv` where the environment is
Gymnasium's; then training, beside the sum of its parts: the same number of steps alone, and the
same updates of an environment that does nothing. The loop of training is compiled, with a callback
per step; for comparison, another runs on the host around compiled `act` and `update`. All sides
take turns; medians over rounds.

    python benchmarks/host_environments.py pettingzoo/mpe2:simple_spread_v3
    python benchmarks/host_environments.py gymnasium/CartPole-v1 --n-envs 16 --n-updates 20
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.environments.spaces import Box, action_dtype, action_shape

ROLLOUT_LENGTH = 128
ENDS = ("terminated", "truncated")


class Idle(ja.Environment):
    """An environment of given shapes that does nothing."""

    def __init__(self, env: ja.HostEnvironment):
        self.n_actors = env.n_actors
        self.teams = env.teams
        self.time_limits = env.time_limits
        self._limit = env.max_episode_steps
        self._space = env.action_space()
        self._sight = env.sight

    def max_episode_steps(self, params: Any) -> int | None:
        """Return the time limit, which is never reached."""
        return self._limit

    def action_space(self, params: Any) -> Any:
        """Return one actor's action space."""
        return self._space

    def reset_env(self, rng: jax.Array, params: Any) -> tuple[Any, Any]:
        """Observe zeros."""
        return self._observe(), jnp.zeros(())

    def step_env(self, rng: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        """Observe zeros again."""
        no = jnp.zeros(self.n_actors, bool)
        return self._observe(), state, jnp.zeros(self.n_actors), no, no, {}

    def _observe(self) -> ja.Observation:
        features, mask = self._sight["features"], self._sight.get("action_mask")
        return ja.Observation(
            jnp.zeros(features.shape, features.dtype),
            None if mask is None else jnp.ones(mask.shape, bool),
        )


def stepping(env: ja.HostEnvironment, n_envs: int, n_steps: int) -> Callable[[], Any]:
    """Step workers with random actions."""
    pool = env.make_pool(n_envs, None, has_state=False)
    random, space = np.random.default_rng(0), env.action_space()
    shape = (n_envs, env.n_actors, *action_shape(space))
    if isinstance(space, Box):
        action = random.uniform(space.low, space.high, shape).astype(action_dtype(space))
    else:
        action = random.integers(0, space.n_choices, (*shape[:2], len(space.n_choices)))
        action = action.reshape(shape).astype(action_dtype(space))
    seeds = np.arange(n_envs, dtype=np.uint32)
    pool.reset(seeds)

    def step() -> None:
        for _ in range(n_steps):
            pool.step(action, seeds)

    return step


def stepping_by_gymnasium(env_id: str, n_envs: int, n_steps: int) -> Callable[[], Any]:
    """Step the processes of Gymnasium's vector with random actions."""
    import gymnasium

    make = [lambda: gymnasium.make(env_id, disable_env_checker=True)] * n_envs
    envs = gymnasium.vector.AsyncVectorEnv(make, context="forkserver")
    envs.reset(seed=0)
    action = envs.action_space.sample()

    def step() -> None:
        for _ in range(n_steps):
            envs.step(action)

    return step


def make_agent(env: Any, n_envs: int, n_updates: int) -> Any:
    """Make an agent without evaluations."""
    config = ja.AgentConfig(
        n_steps=n_updates,
        batch_size=n_envs,
        minibatch_size=max(n_envs // 4, 1),
        rollout_length=ROLLOUT_LENGTH,
        n_evals=0,
        progress_bar=False,
    )
    kind = ja.ContinuousIPPO if isinstance(env.action_space(None), Box) else ja.DiscreteIPPO
    return kind(env, None, config)


def training(env: Any, n_envs: int, n_updates: int) -> Callable[[], Any]:
    """Train, with the loop over steps in compiled code."""
    agent, hyperparams = make_agent(env, n_envs, n_updates), ja.HyperParameters()
    return lambda: jax.block_until_ready(agent.train(jax.random.key(0), hyperparams))


def training_by_host(env: ja.HostEnvironment, n_envs: int, n_updates: int) -> Callable[[], Any]:
    """Train, with the loop over steps on the host."""
    agent = make_agent(env, n_envs, n_updates)
    pool, seeds = env.make_pool(n_envs, None, has_state=False), np.arange(n_envs, dtype=np.uint32)

    def copied(frame: Any) -> Any:  # the pool's next step writes into the same arrays
        return {name: array.copy() for name, array in frame.items()}

    def seen(frame: Any, elapsed: np.ndarray, prefix: str = "") -> Any:
        features, mask = frame[f"{prefix}features"], frame.get(f"{prefix}action_mask")
        return ja.Observation(features, mask, elapsed=elapsed)

    def collect(runner: Any, frame: Any, elapsed: np.ndarray) -> tuple[Any, Any, np.ndarray]:
        carry, records, steps, finals = None, [], [], []
        active = [frame["alive"]]
        for _ in range(ROLLOUT_LENGTH):
            action, record = agent.act(runner, seen(frame, elapsed), carry)
            frame, carry = copied(pool.step(np.asarray(action), seeds)), record.carry
            over = frame["over"]
            for name in ("features", "action_mask"):
                if name in frame:
                    frame[f"final_{name}"][~over] = frame[name][~over]
            finals.append(seen(frame, elapsed + 1, "final_"))
            elapsed = np.where(over, 0, elapsed + 1)
            records.append(record)
            steps.append(frame)
            active.append(frame["alive"])
        rollout = ja.Rollout.from_records(
            records,
            **{name: [step[name] for step in steps] for name in ("reward", *ENDS)},
            active=active[:-1],
            final_observation=finals,
            last_observation=seen(frame, elapsed),
        )
        return rollout, frame, elapsed

    def train() -> None:
        runner = agent.init(jax.random.key(0), ja.HyperParameters())
        frame, elapsed = copied(pool.reset(seeds)), np.zeros(n_envs, np.int32)
        for _ in range(n_updates):
            rollout, frame, elapsed = collect(runner, frame, elapsed)
            runner, _ = agent.update(runner, rollout)
        jax.block_until_ready(runner)

    return train


def times(sides: dict[str, Callable[[], Any]], n_rounds: int) -> dict[str, np.ndarray]:
    """Return each side's seconds, ``[rounds]``; the sides take turns, after one that compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(n_rounds + 1):
        for name, run in sides.items():
            started = time.perf_counter()
            run()
            if i > 0:
                seconds[name].append(time.perf_counter() - started)
    return {name: np.array(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("env", nargs="?", default="pettingzoo/mpe2:simple_spread_v3")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parsed = parser.parse_args()
    n_steps = parsed.n_updates * ROLLOUT_LENGTH

    sides = {}
    for n_workers in sorted({1, os.cpu_count() or 1}):
        env, _ = ja.make(parsed.env, n_workers=n_workers)
        sides[f"{n_workers} worker(s)"] = stepping(env, parsed.n_envs, n_steps)
    library, _, name = parsed.env.partition("/")
    if library == "gymnasium":
        sides["AsyncVectorEnv"] = stepping_by_gymnasium(name, parsed.n_envs, n_steps)
    for side, seconds in times(sides, parsed.rounds).items():
        rate = parsed.n_envs * n_steps / np.median(seconds)
        print(f"{side:16} {rate:10,.0f} environment steps/s")

    env, _ = ja.make(parsed.env)
    of_sides = times(
        {
            "training": training(env, parsed.n_envs, parsed.n_updates),
            "loop on the host": training_by_host(env, parsed.n_envs, parsed.n_updates),
            "steps alone": stepping(env, parsed.n_envs, n_steps),
            "updates alone": training(Idle(env), parsed.n_envs, parsed.n_updates),
        },
        parsed.rounds,
    )
    for side, seconds in of_sides.items():
        print(f"{side:16} {np.median(seconds):10.2f} s")
    ratios = of_sides["training"] / (of_sides["steps alone"] + of_sides["updates alone"])
    low, high = np.quantile(ratios, [0.25, 0.75])
    print(
        f"{'ratio':16} {np.median(ratios):10.2f} ({low:.2f} to {high:.2f}) of training to the sum "
        "of its parts: median and quartiles of the rounds'"
    )


if __name__ == "__main__":
    main()

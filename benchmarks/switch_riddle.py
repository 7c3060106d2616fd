"""Three prisoners learn to speak by light: a bonus for signals, a growing penalty, and a selection.

Plain IPPO tells on the last day without looking at the light, a trap that exact gradients never
leave (`switch_riddle_landscape.py`). Two changes help, both over the first half of training:

* A bonus for actions from which another prisoner could tell what this one remembers (positive
  signalling, Eccles et al. 2019, https://arxiv.org/abs/1912.05676). It falls to 0.
* Negative rewards count half at first, so that prisoners dare to tell at all, and 3.5 times in the
  end, so that telling without knowing earns less than nothing. The optimum never tells wrongly: it
  is the same for every penalty.

Each repetition trains a population and keeps the member with the highest return at the last
evaluation of training. Its fresh episodes have the task's own rewards.

    python benchmarks/switch_riddle.py --repetitions 8
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.ippo.population.members import best_member
from jaxagents.ppo.losses import weighted_mean

N_DAYS, N_FRESH_EPISODES = 6, 10_000
PENALTIES = (0.5, 3.5)  # factors of negative rewards


class SignalParameters(ja.HyperParameters):
    """Adds the weight of the bonus, and the factor of negative rewards."""

    signal: ja.PerPolicy = 0.2
    penalty: ja.PerPolicy = PENALTIES[0]


class SignallingIPPO(ja.DiscreteIPPO):
    """IPPO with a bonus for signals and a penalty that grows."""

    default_hyperparams = SignalParameters()

    def scheduled(self, runner):
        """Lower the entropy and signal bonuses to 0, and raise the penalty, in the first half."""
        hyperparams = super().scheduled(runner)
        left = jnp.maximum(0.0, 1.0 - 2.0 * runner.n_updates_done / runner.n_steps)
        return hyperparams.replace(
            ent_coeff=hyperparams.ent_coeff * left,
            signal=hyperparams.signal * left,
            penalty=PENALTIES[1] + (PENALTIES[0] - PENALTIES[1]) * left,
        )

    def advantages(self, trajectory, hyperparams):
        """Estimate advantages, with the current penalty."""
        reward = trajectory.reward
        reward = jnp.where(reward < 0, hyperparams.penalty * reward, reward)
        return super().advantages(trajectory._replace(reward=reward), hyperparams)

    def actor_loss(self, params, minibatch, hyperparams):
        """Reward the information in actions beyond that of the current observation, in nats."""
        loss, statistics = super().actor_loss(params, minibatch, hyperparams)
        probabilities = jax.nn.softmax(self.networks.batch_dist_params(params, minibatch))
        in_room, light, time_share = jnp.moveaxis(minibatch.observation.features, -1, 0)
        weight = minibatch.weight * in_room
        seen = jax.nn.one_hot(2 * jnp.round(N_DAYS * time_share) + light, 2 * N_DAYS)
        shares = weight[..., None] * seen
        of_seen = jnp.einsum("...s,...a->sa", shares, probabilities)
        of_seen /= jnp.einsum("...s->s", shares)[:, None] + 1e-6
        signal = weighted_mean(seen @ entropy(of_seen) - entropy(probabilities), weight)
        loss = loss - hyperparams.signal * signal
        return loss, statistics | {"actor_loss": loss, "signal": signal}


def entropy(probabilities: jax.Array) -> jax.Array:
    """Return the entropy of the last axis, in nats."""
    return -jnp.sum(probabilities * jnp.log(probabilities + 1e-9), axis=-1)


def make_agent(n_updates: int) -> SignallingIPPO:
    """Build the agent."""
    env, env_params = ja.make("jaxmarl/switch_riddle")
    layers = ja.Layers(hidden_sizes=(32,), activation="relu", memory_size=32)
    config = ja.AgentConfig(
        n_steps=n_updates,
        batch_size=128,
        minibatch_size=32,
        rollout_length=32,
        eval_frequency=n_updates // 4,
        n_evals=2048,
        recurrent="mingru",
        shared_torso=True,
        actor_layers=layers,
        critic_layers=layers,
        normalize_observations=False,
        progress_bar=False,
    )
    return SignallingIPPO(env, env_params, config)


def main() -> None:
    """Print a row per repetition."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--updates", type=int, default=120, help="of each member")
    parsed = parser.parse_args()

    agent = make_agent(parsed.updates)
    rate = ja.OptimizerParams(learning_rate=3e-3)
    hyperparams = SignalParameters(
        ent_coeff=0.1, actor_optimizer_params=rate, critic_optimizer_params=rate
    )
    print(f"{parsed.members * parsed.updates * agent.config.steps_per_update:,} steps each")
    print("| repetition | greedy | sampled | members at the last evaluation | seconds |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for repetition in range(parsed.first, parsed.first + parsed.repetitions):
        started = time.perf_counter()
        seeds = parsed.members * repetition + jnp.arange(parsed.members)
        runner, metrics = agent.train(jax.vmap(jax.random.key)(seeds), hyperparams)
        best = agent.member(runner, best_member(metrics, "last"))
        rng = jax.random.key(10**6 + repetition)
        greedy, sampled = (
            np.mean(agent.eval(rng, N_FRESH_EPISODES, greedy=each, runner=best)["returns"])
            for each in (True, False)
        )
        last = np.mean(metrics["returns"][:, -1], axis=(1, 2))
        members = ", ".join(f"{each:.2f}" for each in last)
        seconds = time.perf_counter() - started
        row = f"| {repetition} | {greedy:.3f} | {sampled:.3f} | {members} | {seconds:.0f} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()

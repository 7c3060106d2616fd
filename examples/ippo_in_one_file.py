"""Independent PPO on JaxMARL's simple_spread, from top to bottom.

Three agents share one policy and one critic, and each learns from its own observations, as PPO
learns from a single agent's. This is the algorithm of jaxagents in its textbook setting
(`jaxagents.textbook_ppo`), without the package: a test lets both do 20 updates and compares the
parameters. Copy it, and change it.

    python examples/ippo_in_one_file.py

Axes: T steps of a rollout, E environments, A agents.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347; de Witt et al. 2020,
https://arxiv.org/abs/2011.09533.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import optax

ENV = jaxmarl.make("MPE_simple_spread_v3")
N_AGENTS = ENV.num_agents
N_ACTIONS = ENV.action_space(ENV.agents[0]).n


class Config(NamedTuple):
    """Sizes and coefficients."""

    n_updates: int = 500
    n_envs: int = 16
    n_steps: int = 128  # of a rollout
    n_epochs: int = 4
    n_minibatches: int = 4
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    eps_clip: float = 0.2
    ent_coeff: float = 0.01
    vf_coeff: float = 0.5
    grad_clip: float = 0.5


class MLP(nn.Module):
    """Two hidden layers of 64 tanh units, with orthogonal weights and zero biases."""

    n_outputs: int
    output_scale: float

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Map ``[..., observation]`` to ``[..., n_outputs]``."""
        hidden = features
        for _ in range(2):
            hidden = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))(hidden))
        output = nn.Dense(self.n_outputs, kernel_init=nn.initializers.orthogonal(self.output_scale))
        return output(hidden)


ACTOR, CRITIC = MLP(N_ACTIONS, output_scale=0.01), MLP(1, output_scale=1.0)


class State(NamedTuple):
    """All that an update needs from the one before it."""

    params: dict[str, Any]  # of "actor" and "critic"
    opt_state: Any
    env_state: Any  # [E, ...]
    observation: jax.Array  # [E, A, observation]
    episode_return: jax.Array  # so far, [E, A]
    rng: jax.Array


class Step(NamedTuple):
    """A step of a rollout, ``[E, A, ...]``; stacked ``[T, E, A, ...]``."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    ended: jax.Array  # the episode; MPE's time limit is a part of the task
    finished_return: jax.Array  # of an episode that ended at this step, else NaN


class Sample(NamedTuple):
    """What the losses read, ``[..., A, ...]``."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    value_target: jax.Array


def optimizer(config: Config) -> optax.GradientTransformation:
    """Build Adam, after clipping the gradients of both networks by their common norm."""
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip), optax.adam(config.learning_rate, eps=1e-5)
    )


def stack(by_agent: dict[str, jax.Array]) -> jax.Array:
    """Stack what JaxMARL returns by agent, ``[A, ...]``."""
    return jnp.stack([by_agent[name] for name in ENV.agents])


def reset(rng: jax.Array) -> tuple[jax.Array, Any]:
    """Start an episode in one environment."""
    observation, env_state = ENV.reset(rng)
    return stack(observation), env_state


def step(rng: jax.Array, env_state: Any, action: jax.Array) -> tuple[jax.Array, Any, Any, Any]:
    """Step one environment, without a reset."""
    actions = dict(zip(ENV.agents, action, strict=True))
    observation, env_state, reward, done, _ = ENV.step_env(rng, env_state, actions)
    return stack(observation), env_state, stack(reward), done["__all__"]


def init(rng: jax.Array, config: Config) -> State:
    """Draw the networks' parameters, and reset the environments."""
    rng, rng_actor, rng_critic, rng_env = jax.random.split(rng, 4)
    observation, env_state = jax.vmap(reset)(jax.random.split(rng_env, config.n_envs))
    params = {
        "actor": ACTOR.init(rng_actor, observation),
        "critic": CRITIC.init(rng_critic, observation),
    }
    return State(
        params=params,
        opt_state=optimizer(config).init(params),
        env_state=env_state,
        observation=observation,
        episode_return=jnp.zeros(observation.shape[:2]),
        rng=rng,
    )


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Return the log probability of each action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def collect_rollout(state: State, rng: jax.Array, config: Config) -> tuple[State, Step]:
    """Act in all environments, and reset those whose episode is over."""

    def act(state: State, now: tuple[jax.Array, jax.Array]) -> tuple[State, Step]:
        rng, gumbel = now
        rng_step, rng_reset = jax.random.split(rng)
        logits = ACTOR.apply(state.params["actor"], state.observation)
        action = jnp.argmax(logits + gumbel, axis=-1)  # a sample of softmax(logits)
        observation, env_state, reward, done = jax.vmap(step)(
            jax.random.split(rng_step, config.n_envs), state.env_state, action
        )
        fresh = jax.vmap(reset)(jax.random.split(rng_reset, config.n_envs))
        observation, env_state = jax.tree.map(
            lambda new, old: jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            fresh,
            (observation, env_state),
        )
        ended = jnp.broadcast_to(done[:, None], reward.shape)
        episode_return = state.episode_return + reward
        taken = Step(
            observation=state.observation,
            action=action,
            log_prob=log_prob_of(logits, action),
            reward=reward,
            ended=ended,
            finished_return=jnp.where(ended, episode_return, jnp.nan),
        )
        state = state._replace(
            env_state=env_state,
            observation=observation,
            episode_return=jnp.where(ended, 0.0, episode_return),
        )
        return state, taken

    rng_noise, rng_env = jax.random.split(rng)
    shape = (config.n_steps, config.n_envs, N_AGENTS, N_ACTIONS)
    noise = jax.random.gumbel(rng_noise, shape)
    return jax.lax.scan(act, state, (jax.random.split(rng_env, config.n_steps), noise))


def estimate_advantages(
    rollout: Step, value: jax.Array, next_value: jax.Array, config: Config
) -> jax.Array:
    """Estimate advantages by GAE; the end of an episode cuts value and trace."""
    goes_on = 1.0 - rollout.ended
    delta = rollout.reward + config.gamma * goes_on * next_value - value
    decay = config.gamma * config.gae_lambda * goes_on

    def add(later: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = now[0] + now[1] * later
        return advantage, advantage

    return jax.lax.scan(add, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def loss_of(params: dict[str, Any], sample: Sample, config: Config) -> jax.Array:
    """PPO's loss: the clipped surrogate, the entropy bonus, and the values' squared error."""
    logits = ACTOR.apply(params["actor"], sample.observation)
    value = CRITIC.apply(params["critic"], sample.observation)[..., 0]
    ratio = jnp.exp(log_prob_of(logits, sample.action) - sample.log_prob)
    clipped = jnp.clip(ratio, 1.0 - config.eps_clip, 1.0 + config.eps_clip)
    advantage = (sample.advantage - sample.advantage.mean()) / (sample.advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    log_probs = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    value_error = jnp.square(value - sample.value_target)
    actor_loss = -surrogate.mean() - config.ent_coeff * entropy.mean()
    return actor_loss + config.vf_coeff * value_error.mean()


@partial(jax.jit, static_argnames="config")
def update(state: State, config: Config) -> tuple[State, jax.Array]:
    """Do one update; also return the mean return of the episodes that ended in it."""
    rng, rng_rollout, rng_epochs, _ = jax.random.split(state.rng, 4)
    state, rollout = collect_rollout(state, rng_rollout, config)
    observations = jnp.concatenate([rollout.observation, state.observation[None]])
    values = CRITIC.apply(state.params["critic"], observations)[..., 0]
    advantage = estimate_advantages(rollout, values[:-1], values[1:], config)
    batch = Sample(
        rollout.observation, rollout.action, rollout.log_prob, advantage, advantage + values[:-1]
    )
    # Agents of a step stay together: T * E samples of A agents each.
    batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)

    def run_minibatch(carry: tuple[Any, Any], indices: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, opt_state = carry
        sample = jax.tree.map(lambda leaf: leaf[indices], batch)
        gradients = jax.grad(loss_of)(params, sample, config)
        updates, opt_state = optimizer(config).update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    def run_epoch(_: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        networks, rng = carry
        rng, rng_epoch = jax.random.split(rng)
        shuffled = jax.random.permutation(rng_epoch, len(batch.log_prob))
        minibatches = shuffled.reshape(config.n_minibatches, -1)
        networks, _ = jax.lax.scan(run_minibatch, networks, minibatches)
        return networks, rng

    # The agents share one policy; with several, each would draw with a key of its own.
    carry = (state.params, state.opt_state), jax.random.split(rng_epochs, 1)[0]
    (params, opt_state), _ = jax.lax.fori_loop(0, config.n_epochs, run_epoch, carry)
    mean_return = jnp.nanmean(rollout.finished_return)
    return state._replace(params=params, opt_state=opt_state, rng=rng), mean_return


def main() -> None:
    """Train, and print the mean return per agent now and then."""
    config = Config()
    state = init(jax.random.key(0), config)
    for i in range(config.n_updates):
        state, mean_return = update(state, config)
        if i % 50 == 0 or i == config.n_updates - 1:
            print(f"update {i + 1}: mean return per agent {mean_return:.1f}")


if __name__ == "__main__":
    main()

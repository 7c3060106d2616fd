"""JaxMARL's feed-forward IPPO recipe for MPE, as a peer to measure against.

A stand-in for `baselines/IPPO/ippo_ff_mpe.py` with its configuration, but without Hydra and the
logging callback: the stock JaxMARL environment behind its own auto-reset and `MPELogWrapper`, one
actor and critic shared by all actors, one optimizer on the joint loss. Episode ends are one merged
`done`, so a time limit counts as termination. Keys are split in the script's order: a seed draws
the same parameters, resets, actions and shuffles here as there.

Actors are the script's: each agent of each environment, agent-major, `actors = agents * envs`.
Training sees the raw reward of each agent; only the logged return is multiplied by the number of
agents.

`jaxmarl_recurrent_recipe` takes from here what both recipes share.

Source: JaxMARL, https://github.com/FLAIROx/JaxMARL, Apache-2.0; Rutherford et al. 2024,
https://arxiv.org/abs/2311.10090.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import optax
from flax.training.train_state import TrainState
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.wrappers.baselines import LogEnvState, MPELogWrapper
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree


@dataclass(frozen=True)
class Recipe:
    """Settings of the recipe; the defaults are those of `config/ippo_ff_mpe.yaml`."""

    env_name: str = "MPE_simple_spread_v3"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    n_steps: int = 128
    n_epochs: int = 4
    n_minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal_learning_rate: bool = True
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2  # of the probability ratio, and of the value's change
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5


STOCK = Recipe()


class Transition(NamedTuple):
    """One step of the rollout; leaves are `[time, actors, ...]` once scanned."""

    obs: PyTree[Array]  # what the network saw, with the starts of episodes where it has memory
    action: Int[Array, "*batch"]
    log_prob: Float[Array, "*batch"]
    value: Float[Array, "*batch"]
    reward: Float[Array, "*batch"]
    done: Bool[Array, "*batch"]


class Batch(NamedTuple):
    """What the loss needs: transitions, with advantage and value target in units of reward."""

    transition: Transition
    advantage: Float[Array, "*batch"]
    value_target: Float[Array, "*batch"]
    memory: Float[Array, "1 *batch hidden"] | None = None  # before the first step, if there is any


class Losses(NamedTuple):
    """The joint loss, its parts, and by how much the policy has moved."""

    total: Float[Array, "*batch"]
    actor: Float[Array, "*batch"]
    value: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]  # nats
    ratio: Float[Array, "*batch"]  # of probabilities, new to old
    approx_kl: Float[Array, "*batch"]  # nats
    clip_fraction: Float[Array, "*batch"]


class Training(NamedTuple):
    """Carry from update to update."""

    network: TrainState
    env: LogEnvState
    obs: Float[Array, "actors obs"]
    rng: PRNGKeyArray


class ActorCritic(nn.Module):
    """Separate 64-64 tanh networks for the action logits and the value."""

    n_actions: int

    @nn.compact
    def __call__(
        self, obs: Float[Array, "*batch obs"]
    ) -> tuple[Float[Array, "*batch actions"], Float[Array, "*batch"]]:
        """Return the log-probabilities of the actions, and the value."""

        def mlp(n_outputs: int, output_scale: float) -> Float[Array, "*batch outputs"]:
            hidden = obs
            for _ in range(2):
                dense = nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))
                hidden = nn.tanh(dense(hidden))
            return nn.Dense(n_outputs, kernel_init=nn.initializers.orthogonal(output_scale))(hidden)

        logits = mlp(self.n_actions, 0.01)
        return jax.nn.log_softmax(logits), mlp(1, 1.0)[..., 0]


def log_prob_of(
    log_probs: Float[Array, "*batch actions"], action: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Select the log-probability of the action taken, by a one-hot product as the script does."""
    return jnp.sum(log_probs * jax.nn.one_hot(action, log_probs.shape[-1]), axis=-1)


def merge_agents(by_agent: Mapping[str, Array], agents: list[str]) -> Array:
    """Merge agents and environments into one agent-major axis of actors."""
    return jnp.concatenate([by_agent[agent] for agent in agents])


def split_agents(by_actor: Int[Array, "actors"], agents: list[str]) -> dict[str, Array]:
    """Undo `merge_agents`."""
    return dict(zip(agents, by_actor.reshape(len(agents), -1), strict=True))


def make_optimizer(recipe: Recipe, n_updates: int) -> optax.GradientTransformation:
    """Make clipped Adam, its rate constant within an update and linear to zero over them."""
    steps_per_update = recipe.n_minibatches * recipe.n_epochs

    def annealed(step: Int[Array, ""]) -> Float[Array, ""]:
        return recipe.learning_rate * (1.0 - (step // steps_per_update) / n_updates)

    rate = annealed if recipe.anneal_learning_rate else recipe.learning_rate
    return optax.chain(
        optax.clip_by_global_norm(recipe.max_gradient_norm), optax.adam(rate, eps=1e-5)
    )


def initialize(
    rng: PRNGKeyArray,
    env: MultiAgentEnv,
    n_envs: int,
    optimizer: optax.GradientTransformation,
    model: nn.Module,
    *inputs: PyTree[Array],
) -> Training:
    """Draw parameters, given the shapes of inputs to the model, and reset the environments."""
    # Chained two-way splits, here and below, are the script's: they keep its random streams.
    rng, rng_network = jax.random.split(rng)
    rng, rng_reset = jax.random.split(rng)
    _, rng_updates = jax.random.split(rng)
    params = model.init(rng_network, *inputs)
    obs, env_state = jax.vmap(env.reset)(jax.random.split(rng_reset, n_envs))
    return Training(
        network=TrainState.create(apply_fn=model.apply, params=params, tx=optimizer),
        env=env_state,
        obs=merge_agents(obs, env.agents),
        rng=rng_updates,
    )


def step_envs(
    rng: PRNGKeyArray, env: MultiAgentEnv, state: LogEnvState, action: Int[Array, "actors"]
) -> tuple[dict[str, Array], LogEnvState, dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Step every environment; return observations, state, reward, done and info, by agent."""
    n_envs = action.size // env.num_agents
    return jax.vmap(env.step)(
        jax.random.split(rng, n_envs), state, split_agents(action, env.agents)
    )


def collect(
    training: Training, env: MultiAgentEnv, n_steps: int
) -> tuple[Training, Transition, Float[Array, "time envs agents"]]:
    """Play `n_steps` in each environment.

    Returns:
        The new carry, the transitions, and at each step the return of each environment's latest
        finished episode (zero before its first), times the number of agents.
    """

    def play_step(training: Training, _: None):
        rng, rng_action = jax.random.split(training.rng)
        rng, rng_env = jax.random.split(rng)
        log_probs, value = training.network.apply_fn(training.network.params, training.obs)
        action = jax.random.categorical(rng_action, log_probs)
        obs, env_state, reward, done, info = step_envs(rng_env, env, training.env, action)
        transition = Transition(
            obs=training.obs,
            action=action,
            log_prob=log_prob_of(log_probs, action),
            value=value,
            reward=merge_agents(reward, env.agents),
            done=merge_agents(done, env.agents),
        )
        training = training._replace(env=env_state, obs=merge_agents(obs, env.agents), rng=rng)
        return training, (transition, info["returned_episode_returns"])

    training, (transitions, episode_returns) = jax.lax.scan(play_step, training, length=n_steps)
    return training, transitions, episode_returns


def generalized_advantages(
    transitions: Transition, last_value: Float[Array, "actors"], recipe: Recipe, unroll: int = 8
) -> Float[Array, "time actors"]:
    """Estimate advantages; `done` zeroes the next value and cuts the trace.

    Source: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16.
    """

    def accumulate(carry: tuple[Array, Array], step: Transition):
        advantage, next_value = carry
        discount = recipe.discount * (1 - step.done)
        delta = step.reward + discount * next_value - step.value
        advantage = delta + discount * recipe.gae_lambda * advantage
        return (advantage, step.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(accumulate, start, transitions, reverse=True, unroll=unroll)[1]


def joint_losses(
    log_probs: Float[Array, "*batch actions"],
    value: Float[Array, "*batch"],
    batch: Batch,
    recipe: Recipe,
) -> Losses:
    """Compute the clipped surrogate, the clipped value loss, the entropy bonus and their sum.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eqs. 7 and 9.
    """
    played = batch.transition
    value_change = jnp.clip(value - played.value, -recipe.clip, recipe.clip)
    value_error = jnp.square(value - batch.value_target)
    clipped_value_error = jnp.square(played.value + value_change - batch.value_target)
    value_loss = 0.5 * jnp.maximum(value_error, clipped_value_error).mean()

    log_ratio = log_prob_of(log_probs, played.action) - played.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1.0 - recipe.clip, 1.0 + recipe.clip)
    actor_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    return Losses(
        total=actor_loss
        + recipe.value_coefficient * value_loss
        - recipe.entropy_coefficient * entropy,
        actor=actor_loss,
        value=value_loss,
        entropy=entropy,
        ratio=ratio.mean(),
        approx_kl=((ratio - 1) - log_ratio).mean(),
        clip_fraction=jnp.mean(jnp.abs(ratio - 1) > recipe.clip),
    )


def shuffle(rng: PRNGKeyArray, batch: Batch, n_minibatches: int) -> Batch:
    """Permute single samples over time and actors; leaves become `[minibatches, samples, ...]`."""
    n_samples = batch.advantage.size
    order = jax.random.permutation(rng, n_samples)

    def deal(leaf: Float[Array, "time actors ..."]) -> Float[Array, "minibatches samples ..."]:
        shuffled = jnp.take(leaf.reshape(n_samples, *leaf.shape[2:]), order, axis=0)
        return shuffled.reshape(n_minibatches, -1, *leaf.shape[2:])

    return jax.tree.map(deal, batch)


def optimize(
    network: TrainState,
    batch: Batch,
    rng: PRNGKeyArray,
    recipe: Recipe,
    replay: Callable[[PyTree, Batch], tuple[Array, Array]],
    shuffle: Callable[[PRNGKeyArray, Batch, int], Batch],
) -> tuple[TrainState, PRNGKeyArray, Losses]:
    """Pass over the batch `n_epochs` times, shuffling anew each time.

    `shuffle` deals the batch into minibatches along a new first axis; `replay` gives the
    log-probabilities of the actions and the values of one. Losses are `[epochs, minibatches]`.
    """

    def loss(params: PyTree, minibatch: Batch) -> tuple[Float[Array, ""], Losses]:
        losses = joint_losses(*replay(params, minibatch), minibatch, recipe)
        return losses.total, losses

    def fit_minibatch(network: TrainState, minibatch: Batch):
        gradient, losses = jax.grad(loss, has_aux=True)(network.params, minibatch)
        return network.apply_gradients(grads=gradient), losses

    def run_epoch(carry: tuple[TrainState, PRNGKeyArray], _: None):
        network, rng = carry
        rng, rng_shuffle = jax.random.split(rng)
        minibatches = shuffle(rng_shuffle, batch, recipe.n_minibatches)
        network, losses = jax.lax.scan(fit_minibatch, network, minibatches)
        return (network, rng), losses

    (network, rng), losses = jax.lax.scan(run_epoch, (network, rng), length=recipe.n_epochs)
    return network, rng, losses


def make_train(
    n_updates: int, n_envs: int = 16, recipe: Recipe = STOCK
) -> Callable[[PRNGKeyArray], tuple[Training, Float[Array, "updates"]]]:
    """Make a pure function that trains from a key; to be jitted or vmapped by the caller.

    Args:
        n_updates: Updates to run; also the horizon of the learning rate's annealing.
        n_envs: Environments stepped side by side.
        recipe: Everything else.

    Returns:
        A function from a key to the final carry and, for each update, the script's
        `returned_episode_returns`: the mean over steps, environments and agents of the latest
        finished episode's return, times the number of agents. This is the team's summed return;
        the first update's mean includes zeros, from before any episode ended.

    Raises:
        ValueError: If the samples of an update do not divide into minibatches.
    """
    env = MPELogWrapper(jaxmarl.make(recipe.env_name, **recipe.env_kwargs))
    n_samples = recipe.n_steps * n_envs * env.num_agents
    if n_samples % recipe.n_minibatches:
        raise ValueError(
            f"n_steps={recipe.n_steps} x n_envs={n_envs} x {env.num_agents} agents = {n_samples} "
            f"samples do not divide into n_minibatches={recipe.n_minibatches}; choose a divisor."
        )
    optimizer = make_optimizer(recipe, n_updates)
    model = ActorCritic(env.action_space(env.agents[0]).n)
    no_obs = jnp.zeros(env.observation_space(env.agents[0]).shape)

    def replay(params: PyTree, batch: Batch) -> tuple[Array, Array]:
        return model.apply(params, batch.transition.obs)

    def update(training: Training, _: None):
        training, transitions, episode_returns = collect(training, env, recipe.n_steps)
        network = training.network
        _, last_value = network.apply_fn(network.params, training.obs)
        advantage = generalized_advantages(transitions, last_value, recipe)
        batch = Batch(transitions, advantage, value_target=advantage + transitions.value)
        network, rng, _ = optimize(network, batch, training.rng, recipe, replay, shuffle)
        return training._replace(network=network, rng=rng), episode_returns.mean()

    def train(rng: PRNGKeyArray) -> tuple[Training, Float[Array, "updates"]]:
        training = initialize(rng, env, n_envs, optimizer, model, no_obs)
        return jax.lax.scan(update, training, length=n_updates)

    return train


def measure(
    make_train: Callable[..., Callable], returns_of: Callable[[PyTree], Float[Array, "updates"]]
) -> None:
    """Print compile time, milliseconds per update, environment steps per second and return.

    Args:
        make_train: Maps numbers of updates and environments to a training function, as above.
        returns_of: Selects the returns, one per update, from what training yields per update.
    """
    parser = argparse.ArgumentParser(description="Time a recipe, and print its return.")
    parser.add_argument("--n-updates", type=int, default=50)
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-runs", type=int, default=5, help="runs to take the median of")
    args = parser.parse_args()

    started = time.perf_counter()
    train = jax.jit(make_train(args.n_updates, args.n_envs)).lower(jax.random.key(0)).compile()
    print(f"compile         {time.perf_counter() - started:10.2f} s")

    seconds, final_returns = [], []
    for seed in range(args.n_runs):
        started = time.perf_counter()
        _, metrics = jax.block_until_ready(train(jax.random.key(seed)))
        seconds.append(time.perf_counter() - started)
        final_returns.append(float(returns_of(metrics)[-1]))
    update_seconds = statistics.median(seconds) / args.n_updates
    print(f"update          {1e3 * update_seconds:10.2f} ms")
    print(f"environment     {args.n_envs * STOCK.n_steps / update_seconds:10.0f} steps/s")
    print(f"final return    {statistics.mean(final_returns):10.2f}")


if __name__ == "__main__":
    measure(make_train, returns_of=lambda episode_returns: episode_returns)

"""JaxMARL's recurrent IPPO recipe for MPE, as a peer to measure against.

A stand-in for `baselines/IPPO/ippo_rnn_mpe.py` with its configuration, but without Hydra and the
logging callback. What it shares with the feed-forward recipe comes from `jaxmarl_recipe`. Its own
parts are a GRU between a dense layer and the heads of actor and critic, reset where an episode
starts; minibatches of whole rollouts, shuffled over actors and replayed from the memory that each
actor had at their start; and the logged return. Here too a seed draws the same numbers as in the
script.

Source: JaxMARL, https://github.com/FLAIROx/JaxMARL, Apache-2.0; Rutherford et al. 2024,
https://arxiv.org/abs/2311.10090.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
from flax.training.train_state import TrainState
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.wrappers.baselines import LogEnvState, MPELogWrapper
from jaxmarl_recipe import (
    Batch,
    Losses,
    Recipe,
    Transition,
    generalized_advantages,
    initialize,
    log_prob_of,
    make_optimizer,
    measure,
    merge_agents,
    optimize,
    step_envs,
)
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

# The settings of `config/ippo_rnn_mpe.yaml`.
STOCK = Recipe(n_minibatches=2, learning_rate=5e-4, clip=0.3, value_coefficient=1.0)
HIDDEN_SIZE = 128


class Seen(NamedTuple):
    """What the network sees at a step."""

    obs: Float[Array, "*batch obs"]
    starts: Bool[Array, "*batch"]  # whether an episode starts here: memory is reset first


class Training(NamedTuple):
    """Carry from update to update."""

    network: TrainState
    env: LogEnvState
    seen: Seen
    memory: Float[Array, "actors hidden"]
    rng: PRNGKeyArray


class Metrics(NamedTuple):
    """What an update yields."""

    episode_return: Float[Array, "*batch"]
    losses: Losses  # means over the epochs' minibatches
    first_ratio: Float[Array, "*batch"]  # of the first minibatch; 1, where replay repeats play


class ResettingGRU(nn.Module):
    """One step of a GRU whose memory is reset where an episode starts."""

    @nn.compact
    def __call__(
        self,
        memory: Float[Array, "batch hidden"],
        inputs: tuple[Float[Array, "batch features"], Bool[Array, "batch"]],
    ) -> tuple[Float[Array, "batch hidden"], Float[Array, "batch hidden"]]:
        """Return the new memory, and the same as output."""
        features, starts = inputs
        memory = jnp.where(starts[:, None], 0.0, memory)
        # The script's name for it: names enter the random keys that parameters are drawn from.
        return nn.GRUCell(features=memory.shape[-1], name="GRUCell_1")(memory, features)


class ActorCritic(nn.Module):
    """A dense layer and a GRU, shared by two-layer heads of the action logits and the value."""

    n_actions: int

    @nn.compact
    def __call__(
        self, memory: Float[Array, "batch hidden"], seen: Seen
    ) -> tuple[
        Float[Array, "batch hidden"], Float[Array, "time batch actions"], Float[Array, "time batch"]
    ]:
        """Return the last memory, the log-probabilities of the actions, and the value."""

        def dense(n_outputs: int, scale: float) -> nn.Dense:
            return nn.Dense(n_outputs, kernel_init=nn.initializers.orthogonal(scale))

        features = nn.relu(dense(HIDDEN_SIZE, 2**0.5)(seen.obs))
        over_time = nn.scan(ResettingGRU, variable_broadcast="params", split_rngs={"params": False})
        # The script's name, as above.
        memory, recalled = over_time(name="ScannedRNN_0")(memory, (features, seen.starts))

        def head(n_outputs: int, output_scale: float) -> Float[Array, "time batch outputs"]:
            hidden = nn.relu(dense(HIDDEN_SIZE, 2.0)(recalled))
            return dense(n_outputs, output_scale)(hidden)

        log_probs = jax.nn.log_softmax(head(self.n_actions, 0.01))
        return memory, log_probs, head(1, 1.0)[..., 0]


def advance(
    training: Training,
) -> tuple[Float[Array, "actors hidden"], Float[Array, "actors actions"], Float[Array, "actors"]]:
    """Let the network see one step: return memory, log-probabilities of the actions, and value."""
    one_step = jax.tree.map(lambda leaf: leaf[None], training.seen)
    network = training.network
    memory, log_probs, value = network.apply_fn(network.params, training.memory, one_step)
    return memory, log_probs[0], value[0]


def collect(
    training: Training, env: MultiAgentEnv, n_steps: int
) -> tuple[Training, Transition, dict[str, Float[Array, "time envs agents"]]]:
    """Play `n_steps` in each environment; return the new carry, transitions, and the log's info.

    A transition's `done` is that of the whole environment, whereas memory is reset by each agent's
    own.
    """

    def play_step(training: Training, _: None):
        rng, rng_action = jax.random.split(training.rng)
        rng, rng_env = jax.random.split(rng)
        memory, log_probs, value = advance(training)
        action = jax.random.categorical(rng_action, log_probs)
        obs, env_state, reward, done, info = step_envs(rng_env, env, training.env, action)
        transition = Transition(
            obs=training.seen,
            action=action,
            log_prob=log_prob_of(log_probs, action),
            value=value,
            reward=merge_agents(reward, env.agents),
            done=jnp.tile(done["__all__"], env.num_agents),
        )
        training = training._replace(
            env=env_state,
            seen=Seen(merge_agents(obs, env.agents), starts=merge_agents(done, env.agents)),
            memory=memory,
            rng=rng,
        )
        return training, (transition, info)

    training, (transitions, info) = jax.lax.scan(play_step, training, length=n_steps)
    return training, transitions, info


def logged_return(info: dict[str, Float[Array, "time envs agents"]]) -> Float[Array, ""]:
    """Average the first agent's return over the episodes that end; NaN where none does."""
    ends = info["returned_episode"][..., 0]
    return jnp.mean(info["returned_episode_returns"][..., 0], where=ends)


def shuffle(rng: PRNGKeyArray, batch: Batch, n_minibatches: int) -> Batch:
    """Permute actors, of whole rollouts; leaves become `[minibatches, time, actors, ...]`."""
    order = jax.random.permutation(rng, batch.advantage.shape[1])

    def deal(leaf: Float[Array, "time actors ..."]) -> Float[Array, "minibatches time actors ..."]:
        shuffled = jnp.take(leaf, order, axis=1)
        dealt = shuffled.reshape(leaf.shape[0], n_minibatches, -1, *leaf.shape[2:])
        return jnp.swapaxes(dealt, 0, 1)

    return jax.tree.map(deal, batch)


def make_train(
    n_updates: int, n_envs: int = 16, recipe: Recipe = STOCK
) -> Callable[[PRNGKeyArray], tuple[Training, Metrics]]:
    """Make a pure function that trains from a key; to be jitted or vmapped by the caller.

    Args:
        n_updates: Updates to run; also the horizon of the learning rate's annealing.
        n_envs: Environments stepped side by side.
        recipe: Everything else.

    Returns:
        A function from a key to the final carry and the metrics, `[updates]`. The return is the
        script's `returns`: the mean, over the episodes that ended in the update, of the first
        agent's return times the number of agents. The team's summed return has the same mean
        where agents are alike.

    Raises:
        ValueError: If the actors do not divide into minibatches.
    """
    env = MPELogWrapper(jaxmarl.make(recipe.env_name, **recipe.env_kwargs))
    n_actors = n_envs * env.num_agents
    if n_actors % recipe.n_minibatches:
        raise ValueError(
            f"n_envs={n_envs} x {env.num_agents} agents = {n_actors} actors do not divide into "
            f"n_minibatches={recipe.n_minibatches}; choose a divisor."
        )
    optimizer = make_optimizer(recipe, n_updates)
    model = ActorCritic(env.action_space(env.agents[0]).n)
    nothing = Seen(
        obs=jnp.zeros((n_actors, *env.observation_space(env.agents[0]).shape)),
        starts=jnp.zeros(n_actors, bool),
    )
    empty = jnp.zeros((n_actors, HIDDEN_SIZE))

    def replay(params: PyTree, batch: Batch) -> tuple[Array, Array]:
        _, log_probs, value = model.apply(params, batch.memory[0], batch.transition.obs)
        return log_probs, value

    def update(training: Training, _: None):
        memory = training.memory[None]
        training, transitions, info = collect(training, env, recipe.n_steps)
        _, _, last_value = advance(training)
        advantage = generalized_advantages(transitions, last_value, recipe, unroll=16)
        batch = Batch(transitions, advantage, advantage + transitions.value, memory)
        network, rng, losses = optimize(
            training.network, batch, training.rng, recipe, replay, shuffle
        )
        metrics = Metrics(
            episode_return=logged_return(info),
            losses=jax.tree.map(jnp.mean, losses),
            first_ratio=losses.ratio[0, 0],
        )
        return training._replace(network=network, rng=rng), metrics

    def train(rng: PRNGKeyArray) -> tuple[Training, Metrics]:
        one_step = jax.tree.map(lambda leaf: leaf[None], nothing)
        start = initialize(rng, env, n_envs, optimizer, model, empty, one_step)
        seen = nothing._replace(obs=start.obs)
        training = Training(start.network, start.env, seen, memory=empty, rng=start.rng)
        return jax.lax.scan(update, training, length=n_updates)

    return train


if __name__ == "__main__":
    measure(make_train, returns_of=lambda metrics: metrics.episode_return)

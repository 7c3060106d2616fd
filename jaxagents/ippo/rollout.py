"""Experience for an update by hand: what acting records, and rollouts collected elsewhere."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.protocol import as_observation
from jaxagents.ppo.schedules import training_reward
from jaxagents.training.atomic_write import replacing
from jaxagents.types import Observation, PyTree, Transition, to_be_valued


class Acting(NamedTuple):
    """Carry from one step of a rollout by hand to the next."""

    rngs: Key[Array, " time"]  # of the environments' steps
    noise: Float[Array, "time envs actors outputs"]  # that actions are sampled from
    memory: PyTree  # the actors' recurrent state, [envs, actors, ...]
    n_steps: Int[Array, ""]  # done so far


class Record(NamedTuple):
    """The record of one step of a rollout by hand, ``[envs, actors, ...]``.

    A `Rollout` takes the first four fields.
    """

    observation: Observation  # as networks take it: with agent ids, the time, the global state
    memory: PyTree  # the actors' recurrent state before the step
    action: Array  # as sampled: unclipped, before any squashing
    log_prob: Float[Array, "envs actors"]
    carry: Acting  # for the next step
    rng: Key[Array, ""]  # for the environments' step, as `agent.step` would draw it


class Rollout(NamedTuple):
    """Experience of one update, as numpy or jax arrays ``[time, envs, actors, ...]``.

    The axes are the configuration's ``rollout_length`` and ``batch_size``, and the environment's
    actors.

    Attributes:
        observation: The observation before each step: an `Observation`, or its features alone.
        action: As `act` recorded it. Discrete actions are what the environment took; continuous
            ones are values from before they were clipped or squashed.
        log_prob: Log probability of the action under the policy that chose it; None if it is
            unknown, which only `pretrain` accepts.
        reward: The environment's reward.
        terminated: The actor's episode ended in a terminal state.
        truncated: The actor's episode was cut off in another state.
        last_observation: After the last step, and after any reset, ``[envs, actors, ...]``.
        final_observation: After each step, but before any reset; None if nothing was truncated, or
            if the time limit is a part of the task.
        active: The actor was alive before the step; None: always.
        memory: The actors' recurrent state before each step; for recurrent agents only. Sequences
            start with it, though the networks have changed since ("stored state" in R2D2,
            Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX).
        last_memory: After the last step, ``[envs, actors, ...]``; for recurrent agents only.
        shaped_reward: For configurations with ``shaped_reward_steps``.
        episode_over: The environment was reset, ``[time, envs]``; None: where every actor's episode
            has ended. The actors of a `Side` may end before the environment does.
        last_active: The actor is alive after the last step and any reset, ``[envs, actors]``; None:
            no actor comes back there within an episode.
    """

    observation: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    last_observation: Any
    final_observation: Any = None
    active: Any = None
    memory: Any = ()
    last_memory: Any = ()
    shaped_reward: Any = None
    episode_over: Any = None
    last_active: Any = None

    @classmethod
    def from_records(cls, records: Sequence[Record], **results: Any) -> "Rollout":
        """Stack the records of a rollout's steps.

        Args:
            records: Those that `act` returned, in the order of time.
            results: The other fields. Lists, with one entry per step, are stacked too.
        """
        stacked = {
            name: _stack(values) if isinstance(values, list) else values
            for name, values in results.items()
        }
        of_records = {
            name: _stack([getattr(record, name) for record in records])
            for name in ("observation", "memory", "action", "log_prob")
        }
        return cls(**{"last_memory": records[-1].carry.memory, **of_records, **stacked})

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rollout to a file in NumPy's format npz, without pickle.

        The arrays are named after the fields; those of an `Observation` as ``observation.features``
        and so on, and those of recurrent states by number, as ``memory.0``.

        Raises:
            OSError: the file cannot be written.
        """
        arrays: dict[str, Any] = {}
        for field, value in self._asdict().items():
            if field in _MEMORIES:
                leaves = enumerate(jax.tree.leaves(value))
                arrays |= {f"{field}.{index}": leaf for index, leaf in leaves}
            elif isinstance(value, Observation):
                arrays |= {f"{field}.{part}": leaf for part, leaf in value._asdict().items()}
            else:
                arrays[field] = value
        savez: Any = np.savez  # its type stubs mistake arrays for options
        with replacing(path) as new, new.open("wb") as file:
            savez(file, **{name: each for name, each in arrays.items() if each is not None})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Rollout":
        """Read a rollout that `save` wrote, as numpy arrays; recurrent states are tuples of them.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no rollout.
        """
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        found: dict[str, Any] = {}
        for name, array in arrays.items():
            field, _, part = name.partition(".")
            if field in _MEMORIES:
                found[field] = (*found.get(field, ()), array)
            elif part:
                parts = found.setdefault(field, dict.fromkeys(Observation._fields))
                parts[part] = array
            else:
                found[field] = array
        required = set(cls._fields) - cls._field_defaults.keys() - {"log_prob"}
        wrong = sorted(required - found.keys()) + sorted(found.keys() - set(cls._fields))
        if wrong:
            verb = "lacks" if wrong[0] in required else "has"
            raise ValueError(f"{path} holds no rollout: it {verb} {wrong[0]}.")
        as_observations = {
            field: Observation(**parts) if isinstance(parts, dict) else parts
            for field, parts in found.items()
        }
        return cls(**{"log_prob": None, **as_observations})


_MEMORIES = ("memory", "last_memory")


def check_rollout(
    rollout: Rollout,
    environments: EnvironmentBatch,
    config: AgentConfig,
    action_shape: tuple[int, ...],
) -> None:
    """Check the shapes of a rollout, and that truncated steps can be bootstrapped.

    Args:
        rollout: The rollout.
        environments: Those of the agent that learns from it.
        config: The agent's.
        action_shape: Shape of one actor's action, as sampled.

    Raises:
        TypeError: it is not a rollout.
        ValueError: a shape is wrong; or log probabilities, final observations or recurrent states
            are missing.
    """
    check_shapes(rollout, environments, config, action_shape)
    if rollout.log_prob is None:
        raise ValueError(
            "the rollout has log_prob=None, and updates weigh actions by the probability with "
            "which they were chosen; give the log probabilities, or learn from it by pretrain."
        )
    memories = (rollout.memory, rollout.last_memory)
    if config.recurrent is not None and not all(map(jax.tree.leaves, memories)):
        raise ValueError(
            "the rollout lacks memory or last_memory, which recurrent agents learn from; collect "
            "it with Rollout.from_records."
        )
    if config.shaped_reward_steps is not None and rollout.shaped_reward is None:
        raise ValueError(
            "the rollout has no shaped_reward, which the agent adds to rewards "
            f"(shaped_reward_steps={config.shaped_reward_steps}); give the environment's."
        )
    bootstraps = not environments.time_limit.is_terminal
    if bootstraps and rollout.final_observation is None and np.any(rollout.truncated):
        raise ValueError(
            "the rollout has truncated steps but no final_observation, from which their values "
            "are bootstrapped; give the observations before the resets, or configure "
            "time_limits='terminal'."
        )


def check_shapes(
    rollout: Rollout,
    environments: EnvironmentBatch,
    config: AgentConfig,
    action_shape: tuple[int, ...],
) -> None:
    """Check the shapes of a rollout; see `check_rollout`.

    Raises:
        TypeError: it is not a rollout.
        ValueError: a shape is wrong.
    """
    if not isinstance(rollout, Rollout):
        raise TypeError(
            f"rollout is {type(rollout).__name__}; pass a jaxagents.Rollout, as "
            "Rollout.from_records returns it."
        )
    batch = (config.batch_size,)
    rollout_shape = (config.rollout_length, *batch)
    environments.check_shape("rollout's observation", rollout.observation, rollout_shape)
    environments.check_shape("rollout's last_observation", rollout.last_observation, batch)
    if (final := rollout.final_observation) is not None:
        environments.check_shape("rollout's final_observation", final, rollout_shape)
    environments.check_mask(rollout.observation)
    has_turns = environments.own_observation.has_turn is not None
    if has_turns and as_observation(rollout.observation).has_turn is None:
        raise ValueError(
            "the rollout's observations do not say whose turn it is, as this environment's do; "
            "give has_turn, or the actions of players who waited would be learnt from."
        )
    leading = (config.rollout_length, config.batch_size, environments.n_actors)
    names = ("log_prob", "reward", "shaped_reward", "terminated", "truncated", "active")
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(names, leading)
    expected["action"] = (*leading, *action_shape)
    expected["episode_over"] = leading[:2]
    expected["last_active"] = leading[1:]
    for name, shape in expected.items():
        value = getattr(rollout, name)
        if value is not None and np.shape(value) != shape:
            raise ValueError(
                f"the rollout's {name} has shape {np.shape(value)}; the agent learns from {shape}: "
                "rollout_length, batch_size, actors and the shape of one."
            )


def as_transitions(
    rollout: Rollout,
    environments: EnvironmentBatch,
    config: AgentConfig,
    n_updates_done: Int[Array, ""],
) -> Transition:
    """Convert a checked rollout to the transitions that a compiled rollout collects."""
    prepare, time_limit = environments.as_prepared, environments.time_limit
    ended = jnp.asarray(rollout.terminated, bool), jnp.asarray(rollout.truncated, bool)
    alive = True if rollout.active is None else jnp.asarray(rollout.active, bool)
    active = jnp.broadcast_to(alive, ended[0].shape)
    episode_over = rollout.episode_over
    if episode_over is None:
        episode_over = jnp.all(~active | ended[0] | ended[1], axis=-1)
    over = jnp.broadcast_to(jnp.asarray(episode_over, bool)[..., None], active.shape)
    observation, final = prepare(rollout.observation), rollout.final_observation
    # Without truncations nothing is bootstrapped from final observations.
    final = observation if final is None else prepare(final)
    terminated, truncated = time_limit.for_learning(*ended)
    return Transition(
        observation=observation,
        memory=rollout.memory,
        action=jnp.asarray(rollout.action),
        log_prob=jnp.asarray(rollout.log_prob, jnp.float32),
        reward=training_reward(
            jnp.asarray(rollout.reward, jnp.float32), rollout.shaped_reward, config, n_updates_done
        ),
        terminated=terminated,
        truncated=truncated,
        active=active,
        begins=_lives_begin(active, ended[0] | ended[1], over, rollout.last_active),
        final_observation=None if time_limit.is_terminal else to_be_valued(final),
    )


def _lives_begin(
    active: Bool[Array, "time envs actors"],
    ended: Bool[Array, "time envs actors"],
    over: Bool[Array, "time envs actors"],
    last_active: Bool[Array, "envs actors"] | None,
) -> Bool[Array, "time envs actors"]:
    """Return after which steps a life of an actor begins."""
    if last_active is None:
        last_active = active[-1] & ~ended[-1]
    acts_next = jnp.concatenate([active[1:], jnp.asarray(last_active, bool)[None]])
    return over | ((~active | ended) & acts_next)


def with_structure(memory: PyTree, like: PyTree) -> PyTree:
    """Arrange recurrent states, such as those of a file, in the structure of the agent's own.

    Raises:
        ValueError: the number of arrays differs.
    """
    leaves, structure = jax.tree.leaves(memory), jax.tree.structure(like)
    if structure.num_leaves == 0:
        return like
    if len(leaves) != structure.num_leaves:
        raise ValueError(
            f"the rollout's recurrent states are {len(leaves)} arrays, and the agent's "
            f"{structure.num_leaves}; it was collected with another cell."
        )
    return jax.tree.unflatten(structure, leaves)


def _stack(values: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *values)

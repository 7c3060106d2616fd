"""Trained policies as opponents of other agents."""

from collections.abc import Mapping, Sequence
from typing import Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.sides.opponents import Opponent, Seats, of_actors, unique
from jaxagents.environments.sides.side import Side
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.population.members import member_of, stack
from jaxagents.ippo.runners import Runners, foreign_part
from jaxagents.types import NetworkParams, Observation, PyTree, Runner


@runtime_checkable
class _Agent(Protocol):
    """The parts of `Agent` that its policies need; the module of `Agent` imports this one."""

    @property
    def environments(self) -> EnvironmentBatch:
        """The environments that the agent plays."""
        ...

    @property
    def networks(self) -> ActorCritic:
        """Its networks."""
        ...


@runtime_checkable
class _TrainedAgent(_Agent, Protocol):
    """The parts of `Agent` that its runners need."""

    @property
    def runners(self) -> Runners:
        """Its runners' shapes."""
        ...


class Policies(Opponent):
    """An agent's policies with parameters that the pool holds.

    An agent that was trained on all actors, or on this very side, plays each seat with the policy
    of that seat's actor. An agent of another side plays the seats in their order.

    Args:
        agent: The agent.
        names: The members' names.
        greedy: Take the most probable actions instead of sampling.
    """

    def __init__(self, agent: _Agent, names: Sequence[str], greedy: bool = False):
        self._environments = agent.environments
        side: Side | None = getattr(agent.environments, "side", None)
        self._actors = None if side is None else side.actors
        self._networks = agent.networks
        self._greedy = greedy
        self.names = tuple(names)

    def check(self, seats: Seats) -> None:
        """Raise ValueError if the agent cannot play these actors."""
        mine, space = self._environments.n_actors, self._environments.space
        if mine not in (seats.n_actors, len(seats.actors)):
            raise ValueError(
                f"an agent of {mine} actors cannot play the actors {list(seats.actors)} of "
                f"{seats.n_actors}; an opponent plays all actors, or exactly these."
            )
        if str(space) != str(seats.space):
            raise ValueError(f"an agent whose actions are {space} cannot play {seats.space}.")

    def initial_memory(self, seats: Seats, n_envs: int) -> PyTree:
        """Return the recurrent state at an episode's start, ``[envs, actors, ...]``."""
        return self._networks.actor.empty_memory(n_envs, self._environments.n_actors)

    def begin_lives(
        self, seats: Seats, memory: PyTree, begins: Bool[Array, "envs actors"]
    ) -> PyTree:
        """Reset the recurrent state of actors that come back within an episode."""
        mine = begins if self._plays_all(seats) else begins[:, np.asarray(self._played(seats))]
        return self._networks.actor.reset_memory(memory, mine)

    def _plays_all(self, seats: Seats) -> bool:
        return self._environments.n_actors == seats.n_actors

    def _played(self, seats: Seats) -> tuple[int, ...]:
        """Return the actor that each of the agent's actors plays, if they do not play all."""
        is_own_side = self._actors is not None and set(self._actors) == set(seats.actors)
        return self._actors if self._actors is not None and is_own_side else seats.actors

    def act(
        self,
        seats: Seats,
        params: NetworkParams,
        member: Int[Array, " envs"],
        rng: PRNGKeyArray,
        observation: Observation,
        memory: PyTree,
    ) -> tuple[Array, PyTree]:
        """Choose the actions of the seats' actors."""
        plays_all, played = self._plays_all(seats), self._played(seats)
        if not plays_all:
            observation = of_actors(observation, played)
        seen = self._environments.prepare(observation)

        def act(
            rng: PRNGKeyArray, member: Array, observation: Observation, memory: PyTree
        ) -> tuple[Array, PyTree]:
            actor = jax.tree.map(lambda leaf: leaf[member], params)
            one_env, memory = jax.tree.map(lambda leaf: leaf[None], (observation, memory))
            key = None if self._greedy else rng
            action, memory = self._networks.act(actor, one_env, memory, key)
            return action[0], jax.tree.map(lambda leaf: leaf[0], memory)

        action, memory = jax.vmap(act)(jax.random.split(rng, len(member)), member, seen, memory)
        order = seats.actors if plays_all else [played.index(actor) for actor in seats.actors]
        return action[:, np.asarray(order)], memory


@final
class FrozenPolicies(Policies):
    """Trained policies as opponents; they no longer learn.

    Args:
        agent: The agent that trained them. Either it has all actors of the environment and plays
            some of them, or it has exactly as many actors as it plays.
        runners: As `train`, `step` or `restore` returned them: one, several members, or a
            population. A mapping gives the members names.
        greedy: Take the most probable actions instead of sampling.

    Raises:
        ValueError: there are no runners, or one is of another agent.
    """

    def __init__(
        self,
        agent: _TrainedAgent,
        runners: Runner | Sequence[Runner] | Mapping[str, Runner],
        greedy: bool = False,
    ):
        if isinstance(runners, Runner) and np.ndim(runners.n_updates_done):
            n_members = len(runners.n_updates_done)
            runners = {f"member {i}": member_of(runners, i) for i in range(n_members)}
        if isinstance(runners, Runner):
            runners = [runners]
        if isinstance(runners, Mapping):
            names, members = list(runners), list(runners.values())
        else:
            members = list(runners)
            names = unique([f"after {int(each.n_updates_done)} updates" for each in members])
        if not members:
            raise ValueError("runners is empty; give at least one.")
        super().__init__(agent, names, greedy)
        actors = [agent.networks.actor_of(runner) for runner in members]
        own = agent.networks.actor_of(agent.runners.shapes())
        for name, actor in zip(names, actors, strict=True):
            if (foreign := foreign_part(_named(own), _named(actor))) is not None:
                raise ValueError(f"opponent {name!r}: {foreign}")
        self._params = jax.device_get(stack(actors))

    def params(self) -> PyTree:
        """Return the parameters, ``[members, ...]``."""
        return jax.tree.map(jnp.asarray, self._params)


def _named(actor: NetworkParams) -> dict[str, PyTree]:
    return {"actor": actor.params, "normalizers.observation": actor.features}

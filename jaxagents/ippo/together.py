"""Agents that learn at the same time: on sides of one environment, or each on its own.

Agents of sides share each step of the environments: every agent chooses its own actors' actions,
and learns from their part of the rollout with its own algorithm.
"""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.compiler.jit import compiled_for_speed, compiled_quickly, is_traced
from jaxagents.compiler.random_keys import as_key, to_draw
from jaxagents.compiler.tuned_forms import scan_over_time
from jaxagents.compiler.waiting import wait_for
from jaxagents.environments.sides.batch import SideBatch
from jaxagents.environments.success import with_success
from jaxagents.errors import CheckpointError
from jaxagents.evaluation.episodes import play_episodes
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.collector import after_rollout, loop_of
from jaxagents.ippo.driver import Learners, drive
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.population.memory import check_fits
from jaxagents.ippo.training_run import check_division
from jaxagents.ppo.finiteness import NonFinite, NonFiniteError, skip_nonfinite
from jaxagents.training.blocks import accumulated, open_block
from jaxagents.training.checkpoints import DamagedError
from jaxagents.training.named_arrays import Leaves
from jaxagents.types import (
    Metrics,
    NetworkParams,
    Observation,
    PyTree,
    Runner,
    Training,
    Transition,
    UpdateKeys,
    Updates,
)

Results = dict[str, tuple[Runner, Metrics]]
"""Each agent's runner and metrics, by its name."""
_SAME = (
    ("batch_size", "rollout_length", "max_episode_steps"),  # of agents that share environments
    ("n_steps", "eval_frequency", "n_evals", "eval_seed"),  # of all agents
)


class _GroupTraining(NamedTuple):
    agents: dict[str, Training]
    stop: Bool[Array, ""]


def train_together(
    agents: Mapping[str, IPPOBase],
    rng: PRNGKeyArray,
    hyperparams: HyperParameters | Mapping[str, HyperParameters],
) -> Results:
    """Train several agents at the same time.

    Agents of a `Side` play the sides of ONE environment against each other, or with each other.
    Their sides must cover each of its actors exactly once. All other agents have environments of
    their own, as in `train`: this compares algorithms or hyperparameters.

    Each agent has its own metrics, checkpoints, callbacks and trackers. If one of them ends the
    training, it ends for all.

    Args:
        agents: By name. Numbers of updates and evaluations are the same for all; agents of sides
            also have the same ``batch_size``, ``rollout_length`` and ``max_episode_steps``.
        rng: Random key.
        hyperparams: For all agents, or for each by name.

    Returns:
        Each agent's runner and metrics, as `train` returns them. In evaluations the agents of sides
        play each other.

    Raises:
        ValueError: the agents do not fit together; or as for `train`.
        NonFiniteError: as for `train`.
        Interrupted: as for `train`.
        HostEnvironmentError: as for `train`.
    """
    if is_traced((rng, hyperparams)):
        raise ValueError(
            "train_together cannot be a part of a jax transformation; call it once per seed."
        )
    group = _Group(agents)
    return group.train(group.init(as_key(rng), hyperparams))


def resume_together(agents: Mapping[str, IPPOBase]) -> Results:
    """Continue the training of `train_together` from the last checkpoint that all agents have.

    Later checkpoints of some agents, which a killed process may leave, are removed: their updates
    are repeated, with the same results.

    Hyperparameters are the checkpoints'.

    Args:
        agents: As for `train_together`; each has a ``checkpoint_dir``.

    Raises:
        ValueError: there is no such checkpoint, or it belongs to other agents.
    """
    group = _Group(agents)
    with contextlib.ExitStack() as holding:
        for agent in group.agents.values():
            holding.enter_context(agent.recorder.holding_run())
        return group.train(*group.restore())


def _are_equal(one: PyTree, other: PyTree) -> bool:
    leaves, structure = jax.tree.flatten(one)
    others, its_structure = jax.tree.flatten(other)
    return structure == its_structure and all(map(np.array_equal, leaves, others))


@final
class _Group(Frozen):
    """Several agents and the environments that some of them share."""

    def __init__(self, agents: Mapping[str, IPPOBase]):
        self.agents = dict(agents)
        self.sides = {
            name: agent.environments
            for name, agent in self.agents.items()
            if isinstance(agent.environments, SideBatch)
            and agent.environments.side.opponents is None
        }
        self._check()
        # The sides play in the environments of one of them, with a global state if any has it.
        self.host = min(
            self.sides,
            key=lambda name: self.sides[name].whole.observation.global_state is None,
            default="",
        )
        self.whole = self.sides[self.host].whole if self.sides else None
        self.whole_for_evaluation: Any = self.whole.for_evaluation() if self.whole else None
        self._freeze()

    def _check(self) -> None:
        if not self.agents:
            raise ValueError("agents is empty; name at least one.")
        for agent in self.agents.values():
            check_division(agent)
            check_fits(agent)
        for names, agents in zip(_SAME, (self.sides, self.agents), strict=True):
            for name in names:
                values = {each: getattr(self.agents[each].config, name) for each in agents}
                if len(set(values.values())) > 1:
                    raise ValueError(f"{name} differs between the agents, {values}; choose one.")
        if not self.sides:
            return
        # Equal agents share batches, which may be of another's environment.
        envs = {id(self.agents[name].env.env) for name in self.sides}
        if len(envs) > 1:
            raise ValueError("the sides are of several environments; make them of one object.")
        params = [self.agents[name].env_params for name in self.sides]
        if not all(_are_equal(each, params[0]) for each in params):
            raise ValueError("env_params differ between the agents of sides; give them the same.")
        actors = [actor for batch in self.sides.values() for actor in batch.side.actors]
        n_actors = next(iter(self.sides.values())).whole.n_actors
        if sorted(actors) != list(range(n_actors)):
            raise ValueError(
                f"the sides have the actors {sorted(actors)}; together they must have each of 0 to "
                f"{n_actors - 1} once."
            )

    def init(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters | Mapping[str, HyperParameters]
    ) -> dict[str, Runner]:
        """Build the initial runners."""
        if isinstance(hyperparams, HyperParameters):
            hyperparams = dict.fromkeys(self.agents, hyperparams)
        if hyperparams.keys() != self.agents.keys():
            raise ValueError(
                f"hyperparams names {', '.join(hyperparams)}, and the agents are "
                f"{', '.join(self.agents)}."
            )
        runners = {}
        for i, (name, agent) in enumerate(self.agents.items()):
            key = jax.random.fold_in(rng, i)
            agent.recorder.prepare(key)
            runners[name] = agent.init(key, hyperparams[name])
        return self._seated(runners)

    def restore(self) -> tuple[dict[str, Runner], dict[str, Leaves]]:
        """Read the last checkpoint that all agents have, and their metrics."""
        recorders = {name: agent.recorder for name, agent in self.agents.items()}
        while True:
            kept = [set(recorder.saved.checkpoints.steps()) for recorder in recorders.values()]
            if not (steps := set.intersection(*kept)):
                folders = [str(agent.config.checkpoint_dir) for agent in self.agents.values()]
                raise CheckpointError(
                    "there is no update after which every agent has a checkpoint in "
                    f"{', '.join(folders)}; remove any checkpoints there, and train_together again."
                )
            try:
                restored = {
                    name: recorder.saved.read_step(self.agents[name].runners.shapes(), max(steps))
                    for name, recorder in recorders.items()
                }
            except DamagedError:
                continue
            runners = {name: runner for name, (runner, _) in restored.items()}
            return runners, {name: history for name, (_, history) in restored.items()}

    def train(
        self, runners: dict[str, Runner], histories: Mapping[str, Leaves] | None = None
    ) -> Results:
        """Run the remaining blocks."""
        names, agents = list(self.agents), list(self.agents.values())
        n_updates_done = int(runners[names[0]].n_updates_done)
        initial = histories is None and agents[0].config.initial_evaluation
        learners = Learners(
            agents=agents,
            recorders=[agent.recorder for agent in agents],
            report_themselves=[agent.run.reports_itself for agent in agents],
            run_block=self._run_block,
            runners=lambda training: [each.runner for each in training.agents.values()],
        )
        before = [None if histories is None else histories[name] for name in names]
        with contextlib.ExitStack() as faults:
            for agent in agents:
                faults.enter_context(agent.environments.raising_faults())
            runners = self._with_environments(runners)
            start = {name: self.agents[name].run.first_block(runners[name]) for name in names}
            training, metrics = drive(
                learners,
                _GroupTraining(start, jnp.zeros((), bool)),
                n_updates_done,
                initial,
                before,
            )
        results = {}
        for (name, agent), mine in zip(self.agents.items(), metrics, strict=True):
            try:
                results[name] = agent.run.finished(training.agents[name]), mine
            except NonFiniteError as error:
                raise NonFiniteError(f"{name}: {error}") from None
        return results

    def _with_environments(self, runners: dict[str, Runner]) -> dict[str, Runner]:
        """Reset the environments if their state was lost or no longer matches the runners."""
        here = {
            name: runners[name]
            if name in self.sides
            else agent.run.with_environments(runners[name])
            for name, agent in self.agents.items()
        }
        if not self.sides or self.sides[self.host].can_continue(runners[self.host].env_state):
            return here
        anew = {name: self.agents[name].run.begin_episodes(runners[name]) for name in self.sides}
        return self._seated(here | anew)

    def _seated(self, runners: dict[str, Runner]) -> dict[str, Runner]:
        """Put all sides into the same environments."""
        if not self.sides:
            return runners
        seated = self._take_seats(runners)
        wait_for(seated)
        for name, batch in self.sides.items():
            if name != self.host:
                batch.close()  # no agent plays in these environments
        return seated

    def _run_block(
        self, training: _GroupTraining, n_updates: Int[Array, ""]
    ) -> tuple[_GroupTraining, list[Metrics]]:
        updates = self._update_repeatedly(self._open_block(training, n_updates))
        evaluations = self._evaluate(updates) if self._n_evals else {}
        failures = [
            agent.run.has_failed(updates[name].nonfinite) for name, agent in self.agents.items()
        ]
        has_failed = jnp.any(jnp.stack(failures))
        agents, rows = {}, []
        for name, agent in self.agents.items():
            agents[name], row = agent.run.close_block(
                training.agents[name], updates[name], evaluations.get(name, {}), has_failed
            )
            rows.append(row)
        stop = jnp.any(jnp.stack([each.stop for each in agents.values()]))
        return _GroupTraining(agents, stop), rows

    @property
    def _n_evals(self) -> int:
        return next(iter(self.agents.values())).config.n_evals

    # The compiled parts.

    @compiled_quickly(optimized=False)
    def _take_seats(self, runners: dict[str, Runner]) -> dict[str, Runner]:
        host = runners[self.host].env_state
        seated = {}
        for name, batch in self.sides.items():
            observation, env_state = batch.seat(runners[name].env_state, host)
            seated[name] = runners[name].replace(observation=observation, env_state=env_state)
        return runners | seated

    @compiled_quickly(optimized=False)
    def _open_block(
        self, training: _GroupTraining, n_updates: Int[Array, ""]
    ) -> dict[str, Updates]:
        runners = {name: each.runner for name, each in training.agents.items()}
        shapes = jax.eval_shape(self._update, runners)
        return {
            name: open_block(each._replace(stop=training.stop), n_updates, shapes[name])
            for name, each in training.agents.items()
        }

    @compiled_for_speed()
    def _update_repeatedly(self, updates: dict[str, Updates]) -> dict[str, Updates]:
        def unfinished(updates: dict[str, Updates]) -> Bool[Array, ""]:
            goes_on = [
                (each.n_left > 0) & ~self.agents[name].run.has_failed(each.nonfinite)
                for name, each in updates.items()
            ]
            return jnp.all(jnp.stack(goes_on))

        def update(updates: dict[str, Updates]) -> dict[str, Updates]:
            results = self._update({name: each.runner for name, each in updates.items()})
            return {name: accumulated(updates[name], *results[name]) for name in updates}

        return jax.lax.while_loop(unfinished, update, updates)

    @compiled_for_speed()
    def _update(self, runners: dict[str, Runner]) -> dict[str, tuple[Runner, Metrics, NonFinite]]:
        """Do one update of every agent."""
        results = {
            name: agent.step_and_check(runners[name])
            for name, agent in self.agents.items()
            if name not in self.sides
        }
        keys = {name: self.agents[name].split_key(runners[name]) for name in self.sides}
        for name, (runner, transitions) in self._collect_rollouts(runners, keys).items():
            learn = skip_nonfinite(self.agents[name].learn)
            results[name] = learn(runner, transitions, keys[name])
        return {name: results[name] for name in self.agents}

    def _collect_rollouts(
        self, runners: dict[str, Runner], keys: dict[str, UpdateKeys]
    ) -> dict[str, tuple[Runner, Transition]]:
        """Act on all sides at once; each agent gets its own actors' transitions."""
        if self.whole is None:
            return {}
        whole = self.whole
        agents = {name: self.agents[name] for name in self.sides}
        actors = {name: agent.networks.actor_of(runners[name]) for name, agent in agents.items()}
        draws = {name: agent.collector.draw(keys[name].rollout) for name, agent in agents.items()}
        rngs, _ = draws[self.host]
        noise = {name: drawn for name, (_, drawn) in draws.items()}

        def act(loops: dict[str, Any], now: tuple[PRNGKeyArray, dict[str, Array]]) -> Any:
            rng, noise = now
            choices, actions = {}, {}
            for name, agent in agents.items():
                loop = loops[name]
                choices[name] = agent.collector.choose(
                    actors[name], loop.observation, loop.memory, noise[name]
                )
                actions[name] = agent.distribution.to_environment(choices[name].action)
            state = loops[self.host].env_state.env_state.whole
            step, state = whole.step(rng, state, self._merged(actions))
            after, recorded = {}, {}
            for name, agent in agents.items():
                view = self.sides[name].view(loops[name].env_state, step, state)
                after[name], recorded[name] = agent.collector.record(
                    loops[name], choices[name], *view, runners[name].n_updates_done
                )
            return after, recorded

        start = {name: loop_of(runners[name]) for name in agents}
        loops, steps = scan_over_time(act, start, (rngs, noise), n_at_once=4)
        return {
            name: (
                after_rollout(runners[name], loops[name]),
                agent.collector.with_log_probs(steps[name]),
            )
            for name, agent in agents.items()
        }

    def _merged(self, actions: Mapping[str, Array]) -> Array:
        """Put the actions of all sides into the order of the environment's actors."""
        order = np.argsort([actor for name in actions for actor in self.sides[name].side.actors])
        return jnp.concatenate(list(actions.values()), axis=1)[:, order]

    def _evaluate(self, updates: Mapping[str, Updates]) -> dict[str, Metrics]:
        """Play whole episodes: the agents of sides with each other, the others alone."""
        actors = {
            name: agent.networks.actor_of(updates[name].runner)
            for name, agent in self.agents.items()
        }
        first = next(iter(self.agents.values())).config
        rng = jax.random.key(first.eval_seed)
        metrics = {
            name: agent.player.evaluate(rng, actors[name], first.n_evals, True)
            for name, agent in self.agents.items()
            if name not in self.sides
        }
        if self.sides:
            of_sides = {name: actors[name] for name in self.sides}
            play = partial(self._evaluate_sides, rng, of_sides)
            player = self.agents[next(iter(self.sides))].player
            sides = player.awaited(play, of_sides, self._n_evals)
            metrics |= {name: sides[name] | self._infos(name, sides[name]) for name in sides}
        return metrics

    def _infos(self, name: str, metrics: Metrics) -> Metrics:
        """Return the infos of a side's actors that stay on the host."""
        infos = self.whole_for_evaluation.infos_of_episodes(self.sides[name].side.actors)
        named = {f"info_{info}": jnp.asarray(values) for info, values in infos.items()}
        return with_success(named, self.sides[name].success)

    @compiled_quickly()
    def _evaluate_sides(
        self, rng: PRNGKeyArray, actors: dict[str, NetworkParams]
    ) -> dict[str, Metrics]:
        def act(
            rng: PRNGKeyArray, observation: Observation, memory: dict[str, PyTree]
        ) -> tuple[Array, dict[str, PyTree]]:
            actions, memories = {}, {}
            for name, batch in self.sides.items():
                actions[name], memories[name] = self.agents[name].networks.act(
                    actors[name], batch.seen_by_side(observation), memory[name], None
                )
            return self._merged(actions), memories

        def reset(
            memory: dict[str, PyTree], begins: Bool[Array, "envs actors"]
        ) -> dict[str, PyTree]:
            return {
                name: self.agents[name].networks.actor.reset_memory(
                    memory[name], begins[:, np.asarray(batch.side.actors)]
                )
                for name, batch in self.sides.items()
            }

        def begin(n_envs: int) -> dict[str, PyTree]:
            return {
                name: self.agents[name].networks.actor.empty_memory(n_envs, batch.n_actors)
                for name, batch in self.sides.items()
            }

        episodes = play_episodes(
            self.whole_for_evaluation,
            act,
            begin,
            to_draw(rng),
            self._n_evals,
            reset_memory=reset,
        )
        return {
            name: episodes.of_side(batch.side.actors, batch.side.others).as_metrics(batch.success)
            for name, batch in self.sides.items()
        }

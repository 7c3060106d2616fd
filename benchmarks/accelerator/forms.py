"""Each tuned form of `jaxagents.compiler` turned the other way, compared with the usual program."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tuning

from accelerator.trainings import is_on_cpu
from accelerator.turns import Case, Side, in_turns

_SECONDS = 0.5  # of a side's turn
_SMALL = {"batch_size": 4, "minibatch_size": 2, "rollout_length": 4}
_LARGE = {"batch_size": 1_024, "minibatch_size": 256}


def cases(is_small: bool) -> Sequence[Case]:
    """A case for each form: on a CPU without it, on other devices with it."""
    names = tuning.names()
    return [_case(name, is_small) for name in (["unrolled Threefry"] if is_small else names)]


def _case(name: str, is_small: bool) -> Case:
    workload: dict[str, Any] = _SMALL if is_small else ({} if is_on_cpu() else _LARGE)
    other = f"without: {name}" if is_on_cpu() else f"with: {name}"
    sides = [
        partial(_usual, tuple(workload.items())),
        partial(_side, other, workload, partial(tuning.other_form, name)),
    ]
    n_envs = workload.get("batch_size", 16)
    return in_turns(f"{name}, {n_envs:,} environments", sides, is_small=is_small)


_programs: dict[tuple, Side] = {}


def _usual(workload: tuple) -> Side:
    """Return the usual program, compiled for the first case."""
    if workload not in _programs:
        _programs[workload] = _side("as it is", dict(workload))
    return _programs[workload]


def _side(name: str, workload: dict[str, Any], context: Callable[[], Any] | None = None) -> Side:
    agent = tuning.make_agent(workload)
    go_on, compile_seconds = tuning.begin(
        agent, **({} if context is None else {"context": context})
    )
    n_updates = max(1, round(_SECONDS / tuning.seconds_of(go_on, 1)))
    n_steps = agent.config.batch_size * agent.config.rollout_length
    return Side(name, lambda _: go_on(n_updates), n_updates, n_steps, compile_seconds)

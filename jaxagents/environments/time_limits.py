"""Time limits: when episodes are truncated, and what that means for learning."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagents.config import TimeLimits
from jaxagents.errors import stacklevel_of_caller
from jaxagents.types import PyTree

_ABOUT = 1.05  # horizons that exceed the limit by less are no reason to warn


class TimeLimit(NamedTuple):
    """The time limit of an environment's episodes.

    A limit that is not part of the task cuts off a return that would continue, so learning
    bootstraps from the value of the final observation. A limit that is a part of the task ends the
    return, as termination does, and values depend on the time that is left.

    Source: Pardo et al. 2018, https://arxiv.org/abs/1712.00378.
    """

    n_steps: int | None  # after which episodes are truncated at the latest; None: unknown
    is_terminal: bool  # a part of the task: truncation ends the return
    is_observed: bool  # actors and critics observe the share of the limit that has passed

    def for_learning(
        self, terminated: Bool[Array, "*batch"], truncated: Bool[Array, "*batch"]
    ) -> tuple[Bool[Array, "*batch"], Bool[Array, "*batch"]]:
        """Return the flags for the advantage estimate.

        With a terminal limit, truncation counts as termination.
        """
        if self.is_terminal:
            return terminated | truncated, jnp.zeros_like(truncated)
        return terminated, truncated

    @property
    def last_step_of_returns(self) -> int | None:
        """The step after which no reward counts for learning; None: bootstrapping continues it."""
        return self.n_steps if self.is_terminal else None

    def share(self, elapsed: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Return the share of the limit that has passed after ``elapsed`` steps, at most 1.

        Raises:
            ValueError: the limit is unknown.
        """
        if self.n_steps is None:
            raise ValueError("the time limit is unknown; set max_episode_steps.")
        return jnp.minimum(elapsed / self.n_steps, 1.0)


def warn_of_short_episodes(limit: TimeLimit, discounts: Sequence[float]) -> None:
    """Warn if episodes are shorter than the discount's horizon, 1 / (1 - γ), and values suffer.

    If truncated episodes are bootstrapped, no action follows a final observation, and no target
    trains its value. Temporal differences through it are off-policy, and with function
    approximation they may diverge. If the time limit ends the return, values depend on the time
    that is left.
    """
    if limit.n_steps is None or (limit.is_terminal and limit.is_observed):
        return
    shortest = limit.n_steps * _ABOUT
    for discount in discounts:
        if discount < 1 and 1 / (1 - discount) <= shortest:
            continue
        ahead = "without end" if discount >= 1 else f"{1 / (1 - discount):.0f} steps"
        reason = (
            "the agent does not observe the time (observe_time=False), on which values depend; set "
            "observe_time=True."
            if limit.is_terminal
            else "bootstrapped there (time_limits='bootstrap'), so values may diverge; lower gamma "
            "or, if the time limit is a part of the task, set time_limits='terminal' and "
            "observe_time=True."
        )
        warnings.warn(
            f"gamma={discount:g} looks ahead {ahead}, but episodes are truncated after "
            f"{limit.n_steps} and {reason}",
            stacklevel=stacklevel_of_caller(),
        )
        return


def time_limit_of(
    env: Any,
    env_params: PyTree,
    max_episode_steps: int | None,
    time_limits: TimeLimits | None,
    observe_time: bool | None,
) -> TimeLimit:
    """Combine an environment's own time limit with the configured one.

    Args:
        env: The environment; attributes that it lacks are as in `Environment`.
        env_params: Its parameters.
        max_episode_steps: The configured limit.
        time_limits: The configured kind; None takes the environment's.
        observe_time: None: only if the limit is known, and "terminal" both for the environment and
            in the configuration.

    Raises:
        ValueError: time is to be observed, but the limit is unknown; or the environment's own
            limit is less than 1; or its ``time_limits`` is not a known kind.
    """
    own: Any = getattr(env, "max_episode_steps", None)
    own = own(env_params) if callable(own) else own
    known: list[Any] = [limit for limit in (own, max_episode_steps) if limit is not None]
    shortest = min(known, default=math.inf)
    if shortest < 1:
        raise ValueError(
            f"{type(env).__name__}.max_episode_steps is {own}; it must be at least 1, or None if "
            "it is unknown."
        )
    n_steps = int(shortest) if math.isfinite(shortest) else None
    own_kind = getattr(env, "time_limits", "bootstrap")
    if own_kind not in get_args(TimeLimits):
        raise ValueError(
            f"{type(env).__name__}.time_limits is {own_kind!r}; it must be 'bootstrap' or "
            "'terminal'."
        )
    kind = own_kind if time_limits is None else time_limits
    if observe_time and n_steps is None:
        raise ValueError(
            f"observe_time=True, but {type(env).__name__} does not say after how many steps it "
            "truncates episodes; set max_episode_steps."
        )
    if observe_time is None:
        observe_time = n_steps is not None and own_kind == kind == "terminal"
    return TimeLimit(n_steps, is_terminal=kind == "terminal", is_observed=bool(observe_time))

"""What counts as success in an environment, besides its return. Does not import jax."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["share", "count"]
OfEpisode = Literal["last", "sum", "mean"]


class Success(NamedTuple):
    """The info that says how well an episode went, as papers report it.

    Environments have one as their attribute ``success``. Evaluations then return the metric
    ``success``, and summaries, reports and trackers name it.

    Attributes:
        info: Name of an info of the environment, a number or one per actor; NaN where there is
            none. An episode's value is the mean over the actors that have one.
        title: What is counted, such as "battles won".
        kind: "share" of something, 0 to 1, which is shown in percent; or "count".
        of_episode: How an episode's value is made from the infos of its steps: the "last" one,
            their "sum", or the "mean" of those that are not NaN. For an actor, only its own steps
            count. Outside of JAX it is always the last step's info.
        others: Further infos of the same kind and steps, such as other ends of an episode.
    """

    info: str
    title: str
    kind: Kind = "share"
    of_episode: OfEpisode = "last"
    others: tuple[str, ...] = ()

    @property
    def infos(self) -> tuple[str, ...]:
        """The names of all infos."""
        return (self.info, *self.others)

    def accumulates(self, info: str) -> bool:
        """Return True if an episode's value of an info needs the infos of all its steps."""
        return self.of_episode != "last" and info in self.infos


def check_success(owner: str, success: Any) -> None:
    """Check the declaration itself.

    Args:
        owner: Name of the environment.
        success: Its declaration, or None.

    Raises:
        TypeError: it is not a `Success`.
        ValueError: it has an unknown kind, or none of the ways to make an episode's value.
    """
    if success is None:
        return
    if not isinstance(success, Success):
        raise TypeError(
            f"{owner}.success is {success!r}; give a jaxagents.Success(info, title), or None."
        )
    for field, choices in (("kind", get_args(Kind)), ("of_episode", get_args(OfEpisode))):
        if getattr(success, field) not in choices:
            raise ValueError(
                f"{owner}.success has {field}={getattr(success, field)!r}; choose one of "
                f"{', '.join(map(repr, choices))}."
            )
    if isinstance(success.others, str) or not all(isinstance(each, str) for each in success.infos):
        raise TypeError(
            f"{owner}.success names the infos {success.info!r} and {success.others!r}; give a "
            "name, and a tuple of names."
        )


def check_has_infos(owner: str, success: Success | None, infos: Mapping[str, Any]) -> None:
    """Check that the infos of a declaration are there.

    Args:
        owner: Name of the environment.
        success: Its declaration, or None.
        infos: The infos that it returns and evaluations report, by name.

    Raises:
        ValueError: one is missing.
    """
    for name in () if success is None else success.infos:
        if name not in infos:
            there = ", ".join(map(repr, sorted(infos))) or "none"
            raise ValueError(
                f"{owner}.success names the info {name!r}, which is no number, or no number per "
                f"actor, in the infos of {owner}.step_env; these are {there}."
            )


def with_success(metrics: Mapping[str, Any], success: Success | None) -> dict[str, Any]:
    """Add the metric ``success`` to an evaluation's metrics, if they hold its info."""
    if success is None or f"info_{success.info}" not in metrics:
        return dict(metrics)
    return {**metrics, "success": metrics[f"info_{success.info}"]}

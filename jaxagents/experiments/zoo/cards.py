"""Cards of entries, and the table of all; imports no jax, so that commands start quickly."""

import json
from pathlib import Path
from typing import Any, NamedTuple, final

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.success_rates import success_number
from jaxagents.experiments.zoo.places import CARD, entry_ids

_STATISTICS = ("mean", "ci_low", "ci_high", "std")
_MOST_ACTORS = 4  # whose returns a table shows apart


@final
class Card(NamedTuple):
    """An entry's card, and the size of its files."""

    entry_id: str
    content: dict[str, Any]  # of card.json
    n_bytes: int  # of all of the entry's files

    @property
    def returns(self) -> dict[str, list[float]]:
        """Mean, ci_low, ci_high and std of the return over episodes, ``[actors]`` each."""
        return self.content["returns"]


def read_card(folder: Path, entry_id: str) -> Card:
    """Read the card of an entry.

    Raises:
        ExperimentError: it cannot be read, or lacks what a card says.
    """
    path = folder / entry_id / CARD
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lists = [[float(each) for each in content["returns"][name]] for name in _STATISTICS]
        counts = (content["n_environment_steps"], content["evaluation"]["n_evals"])
        if not all(type(each) is int for each in counts):
            raise TypeError("its numbers of steps and episodes are no integers")
        if len({len(each) for each in lists}) != 1:
            raise ValueError("its returns have different numbers of actors")
        n_bytes = sum(each.stat().st_size for each in path.parent.iterdir() if each.is_file())
    except KeyError as error:
        raise ExperimentError(f"{path}: the card lacks {error}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{path}: the card cannot be read: {reason}") from error
    return Card(entry_id, content, n_bytes)


def read_cards(folder: Path) -> list[Card]:
    """Read the cards of all entries in a folder, in the order of their ids.

    Raises:
        ExperimentError: as for `read_card`.
    """
    return [read_card(folder, each) for each in entry_ids(folder)]


def rows_of_cards(cards: list[Card]) -> list[list[str]]:
    """Return the rows of a table of entries, and first its titles."""
    titles = ["id", "return per actor (95 % interval)", "success", "env steps", "kB"]
    return [titles, *(_row(card) for card in cards)]


def _row(card: Card) -> list[str]:
    returns = card.returns
    ends = zip(returns["mean"], returns["ci_low"], returns["ci_high"], strict=True)
    texts = [f"{mean:,.2f} ({low:,.2f} to {high:,.2f})" for mean, low, high in ends]
    shown = list(dict.fromkeys(texts))  # one for actors that earn the same
    if len(shown) > _MOST_ACTORS:
        shown = [*shown[:_MOST_ACTORS], "..."]
    steps = f"{card.content['n_environment_steps']:,}"
    success = _success_cell(card.content.get("success"))
    return [card.entry_id, ", ".join(shown), success, steps, f"{card.n_bytes / 1000:,.0f}"]


def _success_cell(success: dict[str, Any] | None) -> str:
    if success is None:
        return "-"
    return f"{success['title']}: {success_number(success, success['mean'])}"

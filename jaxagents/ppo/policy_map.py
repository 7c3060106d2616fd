"""Actors to policies and back: the only module that knows how parameters are shared.

Arrays of the environment have an axis of all A actors. Arrays of an update have a leading axis of
P policies, and an axis of K actors, those of the largest policy. Smaller policies are padded with
copies of their own actors, which have zero weight.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxagents.types import PyTree

POLICIES = "policies"
"""The axis over which policies are vmapped."""


def each_policy(stage: Callable[..., Any]) -> Callable[..., Any]:
    """Vmap a stage of an update, written for one policy, over all: ``[policies, ...]``."""
    return jax.vmap(stage, axis_name=POLICIES)


class PolicyMap:
    """Which policy plays each actor.

    Attributes:
        policy_of_actor: Index of the policy that plays each actor, ``[A]``.
        n_policies: Number of policies P.
    """

    def __init__(self, policy_of_actor: Sequence[int]):
        """Group the actors by their policy, in their order."""
        self.policy_of_actor: Int[np.ndarray, " actors"] = np.asarray(policy_of_actor, np.int32)
        self.n_policies: int = int(self.policy_of_actor.max()) + 1
        members = [
            np.flatnonzero(self.policy_of_actor == policy) for policy in range(self.n_policies)
        ]
        n_members = max(len(actors) for actors in members)
        self._actors = np.stack(
            [np.pad(actors, (0, n_members - len(actors)), mode="wrap") for actors in members]
        )
        self._is_member = np.stack([np.arange(n_members) < len(actors) for actors in members])
        position = np.zeros(len(self.policy_of_actor), np.int32)
        for actors in members:
            position[actors] = np.arange(len(actors))
        self._position_of_actor = position

    @property
    def n_members(self) -> int:
        """Number K of actors of the largest policy."""
        return self._actors.shape[1]

    @property
    def n_actors(self) -> int:
        """Number A of actors."""
        return len(self.policy_of_actor)

    def to_policies(self, tree: PyTree, axis: int) -> PyTree:
        """Move the actors at ``axis`` to their policies: ``[..., A, ...]`` to ``[P, ..., K, ...]``.

        The axis of A actors becomes one of K, the actors of the largest policy.
        """
        return jax.tree.map(lambda leaf: self._to_policies(leaf, axis), tree)

    def to_actors(self, tree: PyTree, axis: int) -> PyTree:
        """Undo `to_policies`: ``[P, ..., K, ...]`` to ``[..., A, ...]``, A at ``axis``."""
        return jax.tree.map(lambda leaf: self._to_actors(leaf, axis), tree)

    def apply(
        self, function: Callable[..., PyTree], params: PyTree, *trees: PyTree, axis: int
    ) -> PyTree:
        """Apply every actor's policy to its own arrays.

        Args:
            function: Maps one policy's parameters and ``[..., K, ...]`` to ``[..., K, ...]``.
            params: ``[P, ...]``.
            trees: ``[..., A, ...]``.
            axis: The axis of the actors in all ``trees`` and in the result.
        """
        return self.to_actors(jax.vmap(function)(params, *self.to_policies(trees, axis)), axis)

    def membership(self) -> Array:
        """Return 1 for the actors of each policy and 0 for padding: float ``[P, K]``."""
        return jnp.asarray(self._is_member, jnp.float32)

    def _to_policies(self, leaf: Array, axis: int) -> Array:
        if self.n_policies == 1:
            return leaf[None]
        if self._is_identity:
            return jnp.expand_dims(jnp.moveaxis(leaf, axis, 0), axis + 1)
        grouped = jnp.take(leaf, self._actors, axis=axis)  # [..., P, K, ...]
        return jnp.moveaxis(grouped, axis, 0)

    def _to_actors(self, leaf: Array, axis: int) -> Array:
        if self.n_policies == 1:
            return leaf[0]
        if self._is_identity:
            return jnp.moveaxis(jnp.take(leaf, 0, axis=axis + 1), 0, axis)
        grouped = jnp.moveaxis(leaf, 0, axis)  # [..., P, K, ...]
        flat = grouped.reshape(*grouped.shape[:axis], -1, *grouped.shape[axis + 2 :])
        n_members = self._actors.shape[1]
        return jnp.take(flat, self.policy_of_actor * n_members + self._position_of_actor, axis=axis)

    @property
    def _is_identity(self) -> bool:
        return np.array_equal(self.policy_of_actor, np.arange(self.n_actors))


def make_policy_map(
    parameter_sharing: str | Sequence[int], n_actors: int, teams: Sequence[int] | None = None
) -> PolicyMap:
    """Read ``AgentConfig.parameter_sharing`` for an environment of ``n_actors`` in ``teams``.

    Raises:
        ValueError: an unknown word, not one index per actor, or indices with gaps.
    """
    if parameter_sharing == "shared":
        return PolicyMap([0] * n_actors)
    if parameter_sharing == "independent":
        return PolicyMap(range(n_actors))
    if parameter_sharing == "team":
        if teams is None:
            raise ValueError(
                "parameter_sharing='team', but the environment names no teams; give a policy index "
                "per actor."
            )
        parameter_sharing = teams
    if isinstance(parameter_sharing, str):
        raise ValueError(
            f"parameter_sharing={parameter_sharing!r} is unknown; choose 'shared', 'independent', "
            "'team' or give a policy index per actor."
        )
    indices = list(parameter_sharing)
    if len(indices) != n_actors:
        raise ValueError(
            f"parameter_sharing={indices} names {len(indices)} actors, but the environment has "
            f"{n_actors}; give one policy index for each."
        )
    if set(indices) != set(range(len(set(indices)))):
        raise ValueError(
            f"parameter_sharing={indices} does not count policies from 0 without gaps; "
            f"{len(set(indices))} policies are numbered 0 to {len(set(indices)) - 1}."
        )
    return PolicyMap(indices)

"""Objects that are static under `jax.jit`: what compiled code has read must not change."""

from typing import Any


class Frozen:
    """Refuses to assign attributes once `_freeze` was called.

    Attributes named in ``_mutable`` may change; traced code must not read them.
    """

    _is_frozen = False
    _mutable: tuple[str, ...] = ()

    def _freeze(self) -> None:
        self._is_frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen and name not in self._mutable:
            raise AttributeError(
                f"{type(self).__name__}.{name} is fixed at construction, because compiled code "
                "would go on with the old value; build a new agent."
            )
        super().__setattr__(name, value)

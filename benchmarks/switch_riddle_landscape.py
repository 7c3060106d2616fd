"""Where exact gradient ascent ends in JaxMARL's switch riddle, without sampling and networks.

A table of action probabilities by day, whether the prisoner has been in the room before, and the
light, shared by all three, suffices for the optimum of 0.7407. Its return is computed exactly, as
a sum over days, and increased by Adam from many random tables. What ends below is a local
optimum of the task itself. With ``signal``, a bonus that falls to 0 rewards actions from which
another prisoner could tell whether this one has been in the room before (positive signalling,
Eccles et al. 2019, https://arxiv.org/abs/1912.05676). ``penalty`` is what telling wrongly costs
during the ascent; the printed returns are the task's, with 1. Without looking at the light,
telling on the last day earns 0 at a penalty of 2.86.

    python benchmarks/switch_riddle_landscape.py
"""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax

N_PRISONERS, N_DAYS, N_STARTS, N_STEPS = 3, 6, 32, 3_000
NOTHING, SWITCH, TELL = range(3)
RATE = 0.02  # of Adam
GOOD = 0.72


def entropy(probabilities: jax.Array) -> jax.Array:
    """Return the entropy of the last axis, in nats."""
    return -jnp.sum(probabilities * jnp.log(probabilities + 1e-12), axis=-1)


def expected_return(table: jax.Array, penalty: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """Return the return of a table ``[days, been before, light, actions]``, and its visits."""
    together = jnp.zeros((N_PRISONERS + 1, 2)).at[0, 0].set(1.0)  # how many have been, light
    total, visits = jnp.zeros(()), jnp.zeros(table.shape[:-1])
    for day in range(N_DAYS):
        following = jnp.zeros_like(together)
        for n_been in range(N_PRISONERS + 1):
            for been in range(2):
                share = n_been / N_PRISONERS if been else 1 - n_been / N_PRISONERS
                after = min(n_been + 1 - been, N_PRISONERS)
                for light in range(2):
                    reached = together[n_been, light] * share
                    action = reached * table[day, been, light]
                    visits = visits.at[day, been, light].add(reached)
                    total += action[TELL] * (1.0 if after == N_PRISONERS else -penalty)
                    following = following.at[after, light].add(action[NOTHING])
                    following = following.at[after, 1 - light].add(action[SWITCH])
        together = following
    return total, visits


def signal_of(table: jax.Array, visits: jax.Array) -> jax.Array:
    """Return how much actions say about whether a prisoner was there, in nats per episode."""
    visits = jax.lax.stop_gradient(visits)
    by_light = jnp.sum(visits, axis=1)
    mean = jnp.sum(visits[..., None] * table, axis=1) / (by_light[..., None] + 1e-9)
    return jnp.sum(by_light * entropy(mean)) - jnp.sum(visits * entropy(table))


@partial(jax.jit, static_argnames=("scale", "signal", "penalty"))
def ascend(rng: jax.Array, scale: float, signal: float, penalty: float) -> jax.Array:
    """Return the return at the end of an ascent from logits of a standard deviation."""
    logits = scale * jax.random.normal(rng, (N_DAYS, 2, 2, 3))
    adam = optax.adam(RATE)

    def objective(logits: jax.Array, weight: jax.Array) -> jax.Array:
        table = jax.nn.softmax(logits)
        total, visits = expected_return(table, penalty)
        return total + weight * signal_of(table, visits)

    def step(carry: tuple, done: jax.Array) -> tuple:
        logits, state = carry
        weight = signal * jnp.maximum(0.0, 1 - 1.5 * done)
        gradient = jax.grad(objective)(logits, weight)
        updates, state = adam.update(-gradient, state)
        return (optax.apply_updates(logits, updates), state), None

    start = (logits, adam.init(logits))
    (logits, _), _ = jax.lax.scan(step, start, jnp.arange(N_STEPS) / N_STEPS)
    return expected_return(jax.nn.softmax(logits))[0]


def main() -> None:
    """Print a table of how many starts end near the optimum."""
    rngs = jax.random.split(jax.random.key(0), N_STARTS)
    print(f"| penalty | logits | signal | of {N_STARTS} above {GOOD} | mean | quartiles |")
    print("| --- | --- | --- | --- | --- | --- |")
    for penalty, signal, scale in product((1.0, 3.0), (0.0, 0.1, 0.3), (0.01, 1.0, 3.0)):
        settings = {"penalty": penalty, "scale": scale, "signal": signal}
        ends = np.asarray(jax.vmap(partial(ascend, **settings))(rngs))
        quartiles = ", ".join(f"{each:.3f}" for each in np.quantile(ends, (0.25, 0.5, 0.75)))
        cells = " | ".join(map(str, [*settings.values(), int((ends > GOOD).sum())]))
        print(f"| {cells} | {ends.mean():.3f} | {quartiles} |", flush=True)


if __name__ == "__main__":
    main()

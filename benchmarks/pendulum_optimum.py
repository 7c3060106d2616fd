"""The best mean return that any policy can have on gymnax's Pendulum, by dynamic programming.

    python benchmarks/pendulum_optimum.py

Backward induction over the 200 steps on a grid of angles and speeds, with linear interpolation
between its points. The greedy policy of these time-dependent values then plays episodes from the
environment's own reset: its mean return is a lower bound of the optimum; the mean of the values at
these starts estimates the optimum itself. Both approach it as the grid gets finer.
"""

import argparse

import gymnax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

N_EPISODES = 2_000


def main() -> None:
    """Print the return of the greedy policy, and the values at its starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-angles", type=int, default=401)
    parser.add_argument("--n-speeds", type=int, default=321)
    parser.add_argument("--n-torques", type=int, default=21)
    arguments = parser.parse_args()
    env, params = gymnax.make("Pendulum-v1")
    speeds = jnp.linspace(-params.max_speed, params.max_speed, arguments.n_speeds)
    angles = jnp.linspace(-jnp.pi, jnp.pi, arguments.n_angles)
    torques = jnp.linspace(-params.max_torque, params.max_torque, arguments.n_torques)

    def value_at(values: Array, angle: Array, speed: Array) -> Array:
        turned = (angle + jnp.pi) % (2 * jnp.pi)
        rows = turned / (2 * jnp.pi) * (arguments.n_angles - 1)
        columns = (speed + params.max_speed) / (2 * params.max_speed) * (arguments.n_speeds - 1)
        return jax.scipy.ndimage.map_coordinates(values, [rows, columns], order=1, mode="nearest")

    def outcome(values: Array, angle: Array, speed: Array, torque: Array) -> tuple[Array, ...]:
        """Return reward plus value of the next state, and that state; see gymnax's `step_env`."""
        wrapped = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        pull = 3 * params.g / (2 * params.l) * jnp.sin(angle)
        push = 3.0 / (params.m * params.l**2) * torque
        speed = jnp.clip(speed + (pull + push) * params.dt, -params.max_speed, params.max_speed)
        angle = angle + speed * params.dt
        return reward + value_at(values, angle, speed), reward, angle, speed

    grid = jnp.meshgrid(angles, speeds, indexing="ij")

    def induce(values: Array, _: None) -> tuple[Array, Array]:
        best = jax.lax.fori_loop(
            0,
            len(torques),
            lambda i, best: jnp.maximum(best, outcome(values, *grid, torques[i])[0]),
            jnp.full_like(values, -jnp.inf),
        )
        return best, values

    zeros = jnp.zeros((arguments.n_angles, arguments.n_speeds))
    at_start, values = jax.jit(lambda: jax.lax.scan(induce, zeros, length=200, reverse=True))()

    @jax.jit
    def play(rng: Array) -> tuple[Float[Array, ""], Float[Array, ""]]:
        state = env.reset_env(rng, params)[1]

        def step(carry: tuple[Array, Array], later: Array) -> tuple[tuple[Array, Array], Array]:
            total, reward, angle, speed = jax.vmap(lambda torque: outcome(later, *carry, torque))(
                torques
            )
            best = jnp.argmax(total)
            return (angle[best], speed[best]), reward[best]

        start = (state.theta, state.theta_dot)
        rewards = jax.lax.scan(step, start, values)[1]
        return rewards.sum(), value_at(at_start, *start)

    returns, expected = jax.lax.map(play, jax.random.split(jax.random.key(0), N_EPISODES))
    error = float(returns.std()) / N_EPISODES**0.5
    print(f"greedy policy of the values: {float(returns.mean()):.1f} (standard error {error:.1f})")
    print(f"values at the same starts: {float(expected.mean()):.1f}")


if __name__ == "__main__":
    main()

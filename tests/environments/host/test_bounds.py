"""What environments receive and what policies see: within the space, and the number that it was."""

import functools

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError, WrongValueError
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.spaces import as_space
from jaxagents.ippo.distributions import ClippedGaussian, SquashedGaussian
from tests.environments.host.probes import Observed, Party

ONE = spaces.Box(0, 1, (1,))
LARGE = 5_000_000_000  # 705,032,704 modulo 2**32


def received(space, action):
    """Return what an environment of an action space gets for an agent's float32 action."""
    env = Observed(ONE, np.zeros(1, np.float32), action_space=space)
    adapter = adapt(env)
    adapter.reset(0)
    adapter.step(np.asarray(action, np.float32)[np.newaxis])
    return env.actions[0]


@st.composite
def boxes(draw):
    """Boxes of two dimensions, of any dtype, with finite, half-infinite or no bounds."""
    dtype = np.dtype(
        draw(
            st.sampled_from(
                ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint64"]
            )
        )
    )
    if dtype.kind == "f":
        largest = 6e4 if dtype == np.float16 else 1e6
        number = st.floats(-largest, largest, allow_subnormal=False)
        number = number.map(lambda value: float(dtype.type(value)))
    else:
        limits = np.iinfo(dtype)
        number = st.integers(int(limits.min), int(limits.max))
    pairs = [sorted(draw(st.tuples(number, number))) for _ in range(2)]
    low, high = (np.array(bounds, dtype) for bounds in zip(*pairs, strict=True))
    if dtype.kind == "f" and draw(st.booleans()):
        high[0] = np.inf
    if dtype.kind == "f" and draw(st.booleans()):
        low[1] = -np.inf
    return spaces.Box(low, high, dtype=dtype)


@settings(max_examples=200, deadline=None)
@given(boxes(), st.tuples(st.floats(-20, 20), st.floats(-1e30, 1e30)))
def test_every_action_of_every_box_is_within_it_in_its_own_dtype(space, drawn):
    own = as_space(space)
    with np.errstate(over="ignore"):
        can_be_squashed = np.all(np.isfinite(own.high - own.low))
    for gaussian in (ClippedGaussian, SquashedGaussian)[: 1 + can_be_squashed]:
        action = received(space, gaussian(own).to_environment(jnp.array(drawn, jnp.float32)))
        assert action.dtype == space.dtype
        assert space.contains(action), (gaussian, space, action)
        assert np.isfinite(action).all()


@settings(max_examples=200, deadline=None)
@given(
    *[st.floats(-1e6, 1e6, width=32, allow_subnormal=False)] * 2,
    st.floats(-20, 20),
)
def test_actions_of_compiled_environments_are_within_float32_bounds(one, other, drawn):
    low, high = np.float32(min(one, other)), np.float32(max(one, other))
    own = as_space(ja.Box(low, high, (1,)))
    for gaussian in (ClippedGaussian, SquashedGaussian):
        action = np.asarray(gaussian(own).to_environment(jnp.array([drawn], jnp.float32)))
        assert low <= action[0] <= high


def test_squashed_actions_end_at_unequal_bounds():
    """-1 + (tanh(20) + 1) / 2 * 1.7 is 0.70000005 in float32."""
    own = as_space(ja.Box(np.float32(-1), np.float32(0.7), (1,)))
    action = SquashedGaussian(own).to_environment(jnp.array([20.0]))
    assert np.asarray(action)[0] == np.float32(0.7)


def test_bounds_between_two_float32_are_rounded_inwards():
    space = as_space(ja.Box(-0.1, 0.1, (1,)))  # float32(0.1) is 0.100000001
    assert float(space.high[0]) < 0.1 < float(np.nextafter(space.high[0], np.float32(1)))
    assert float(space.low[0]) == -float(space.high[0])
    unequal = as_space(ja.Box(0, np.array([np.inf, 2**63 - 1], object), (2,)))
    assert unequal.high.tolist() == [np.inf, 2**63 - 2**39]


def test_integers_are_the_nearest_ones_within_the_bounds():
    space = spaces.Box(-3, 3, (6,), np.int8)
    action = received(space, [0.4, 0.6, -0.6, 1.5, 2.5, 300.0])
    assert action.tolist() == [0, 1, -1, 2, 2, 3]


def test_a_single_number_is_an_action():
    action = received(spaces.Box(-1, 1, (), np.float32), 7.0)
    assert (action.shape, action) == ((), 1.0)


def test_vectors_receive_actions_within_their_space():
    """Gymnasium's bounds of float64: 0.1 in float32 would be above."""

    class Arm(Observed):
        def step(self, action):
            assert self.action_space.contains(action)
            observation, _, *others = super().step(action)
            return observation, action[0], *others

    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    make_env = functools.partial(Arm, ONE, np.zeros(1, np.float32), space)
    vector = functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP)
    env = ja.HostEnvironment(lambda n: vector([make_env] * n), vectorized=True)
    pool = env.make_pool(2, None, has_state=False)
    pool.reset(np.zeros(2, np.uint32))
    frame = pool.step(np.array([[[0.1]], [[-9.0]]], np.float32), np.zeros(2, np.uint32))
    np.testing.assert_allclose(frame["reward"], [[0.1], [-0.1]])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (0,), np.float32), "has no action to choose"),
        (spaces.MultiDiscrete(np.zeros(0, int)), "has no action to choose"),
    ],
    ids=["box", "choices"],
)
def test_a_space_without_an_action_is_refused(space, message):
    with pytest.raises(ValueError, match=message):
        adapt(Observed(ONE, np.zeros(1, np.float32), action_space=space))


# Observations.


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_numbers_of_64_bits_are_seen_as_float32(dtype):
    space = spaces.Box(0, 2**62, (2,), np.dtype(dtype).type)
    observation, _ = adapt(Observed(space, np.array([LARGE, 3], dtype))).reset(0)
    assert observation.features.dtype == np.float32
    assert observation.features.tolist() == [[5e9, 3.0]]


def test_numbers_of_a_float16_box_keep_the_precision_of_float32():
    space = spaces.Box(0, 1, (1,), np.float16)
    observation, _ = adapt(Observed(space, np.array([0.1]))).reset(0)
    assert observation.features[0, 0] == np.float32(0.1)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", np.array([LARGE])), ("int8", np.array([300])), ("uint32", np.array([2**40], "u8"))],
)
def test_an_integer_that_the_declared_dtype_cannot_hold_is_a_fault(dtype, value):
    space = spaces.Box(0, 100, (1,), np.dtype(dtype).type)
    with pytest.raises(WrongValueError, match=f"holds {value[0]}.*{dtype}, which cannot hold it"):
        adapt(Observed(space, value)).reset(0)


def test_a_vectors_integers_are_seen_as_float32():
    space = spaces.Box(0, 2**62, (1,), np.int64)
    make_env = functools.partial(Observed, space, np.array([LARGE]))
    env = ja.HostEnvironment(lambda n: SyncVectorEnv([make_env] * n), vectorized=True)
    frame = env.make_pool(2, None, has_state=False).reset(np.zeros(2, np.uint32))
    assert frame["features"].tolist() == [[[5e9]], [[5e9]]]


class Surveyed(Party):
    """A party whose global state is the time in a dtype, or at the reset in another."""

    def __init__(self, first, dtype):
        super().__init__([("host_0",)] * 3, ("host_0",))
        self.state_space = spaces.Box(0, 1, (1,))
        self._first, self._dtype = first, dtype

    def state(self):
        return np.array([LARGE + self._time], self._dtype if self._time else self._first)


def test_global_states_are_seen_as_float32_whatever_their_dtype():
    env = ja.HostEnvironment(lambda: Surveyed("int64", "float64"), n_workers=0)
    pool = env.make_pool(1, None, has_state=True)
    assert pool.reset(np.zeros(1, np.uint32))["global_state"].tolist() == [[5e9]]
    frame = pool.step(np.zeros((1, 1), np.int32), np.zeros(1, np.uint32))
    assert frame["global_state"].tolist() == [[5e9]]


def test_a_global_state_that_turns_into_fractions_is_a_fault():
    class Fractions(Surveyed):
        def state(self):
            return np.array([self._time / 2], self._dtype if self._time else self._first)

    env = ja.HostEnvironment(lambda: Fractions("int32", "float64"), n_workers=0)
    pool = env.make_pool(1, None, has_state=True)
    pool.reset(np.zeros(1, np.uint32))
    with pytest.raises(HostEnvironmentError, match="global state of float64, which was int32"):
        pool.step(np.zeros((1, 1), np.int32), np.zeros(1, np.uint32))


def test_an_observation_of_too_many_one_hot_features_is_refused():
    with pytest.raises(ValueError, match="flattened into 1,000,000,000,000 features"):
        adapt(Observed(spaces.Discrete(10**12), 5))


def test_ends_may_be_floats():
    class Floats(gymnasium.Env):
        observation_space, action_space = ONE, spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 1.0, float(action), np.float64(1 - action), {}

    adapter = adapt(Floats())
    for action, ends in ((1, (True, False)), (0, (False, True))):
        adapter.reset(0)
        outcome = adapter.step(np.array([action]))
        assert (outcome.terminated[0], outcome.truncated[0]) == ends


def acting_in(space):
    """Return a constructor of environments of an action space."""
    return lambda: Observed(ONE, np.zeros(1, np.float32), action_space=space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary([2, 2]),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiDiscrete([[2, 3], [4, 5]])),
        spaces.Tuple([spaces.Discrete(2)] * 2),
        spaces.Box(0, 1, (2, 0)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_action_spaces_that_agents_cannot_play_are_refused_in_one_line(space):
    with pytest.raises((TypeError, ValueError), match=r"^action space ") as refusal:
        ja.HostEnvironment(acting_in(space), n_workers=0)
    message = str(refusal.value)
    assert "\n" not in message
    assert "Wrap the environment in one that takes all choices as one vector." in message or (
        message.endswith("has no action to choose; give it a size of at least 1.")
    )


def test_bounds_of_several_axes_are_shown_in_one_line():
    low = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    env = ja.HostEnvironment(
        acting_in(spaces.Box(low, np.full((2, 2), np.inf, np.float32))), n_workers=0
    )
    assert str(env.action_space()) == "Box(2, 2) from [[0. 1.] [2. 3.]] to inf"
    with pytest.raises(ValueError, match="has actions in Box") as refusal:
        ja.ContinuousIPPO(env, None, ja.AgentConfig(n_steps=1, squash=True))
    assert "\n" not in str(refusal.value)

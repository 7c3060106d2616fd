import os
import subprocess
import sys

import gymnax
import jax
import numpy as np
import pytest

import jaxagents.environments.registry as registry
from jaxagents.cli import main as cli
from jaxagents.environments.registry import (
    describe,
    make,
    register,
    register_environment,
    registered_ids,
)
from jaxagents.errors import EntryPointError
from tests.plugins import forget_registrations, install


@pytest.fixture
def own_registrations(monkeypatch):
    forget_registrations(monkeypatch)


def test_importing_the_registry_imports_no_library_of_environments():
    program = (
        "import sys, jaxagents.environments.registry as registry\n"
        "assert len(registry.registered_ids()) > 30\n"
        "assert not {'gymnax', 'jaxmarl', 'brax'} & set(sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )

    assert (result.returncode, result.stderr) == (0, "")


def test_every_gymnax_environment_is_listed():
    assert list(registry.GYMNAX_IDS) == [f"gymnax/{name}" for name in gymnax.registered_envs]


def test_gymnax_environments_are_the_librarys_own():
    names = [name for name in gymnax.registered_envs if "MNIST" not in name]  # needs a download
    assert len(names) > 20
    for name in names:
        assert type(make(f"gymnax/{name}")[0].env) is type(gymnax.make(name)[0])


def test_a_users_gymnax_environment_is_found():
    gymnax.register("Own-v0", lambda: gymnax.make("CartPole-v1")[0])
    try:
        assert make("gymnax/Own-v0")[0].name == "CartPole-v1"
    finally:
        gymnax.registered_envs.remove("Own-v0")
        gymnax.registration._registry.pop("Own-v0")


def test_cartpole_is_made_without_the_libraries_that_others_of_gymnax_need():
    program = (
        "import sys, jaxagents; jaxagents.make('gymnax/CartPole-v1')\n"
        "print({'pandas', 'scipy.stats', 'matplotlib', 'gymnax.registration'} & {*sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("set()\n", "")


def test_making_returns_the_librarys_own_parameters():
    env, params = make("gymnax/CartPole-v1")

    assert params == gymnax.make("CartPole-v1")[1]
    assert params.replace(max_steps_in_episode=7).max_steps_in_episode == 7
    assert (env.n_actors, env.name) == (1, "CartPole-v1")


def test_arguments_reach_the_librarys_constructor():
    frozen_lake, params = make("gymnax/FrozenLake-misc", map_name="8x8")
    spread, spread_params = make("jaxmarl/MPE_simple_spread_v3", num_agents=2)

    assert (frozen_lake.env.n_states, params.max_steps_in_episode) == (64, 200)
    assert (spread.n_actors, spread_params) == (2, None)


@pytest.mark.parametrize("name", ["discrete", "continuous"])
def test_hunting_is_made_with_its_parameters(name):
    env, params = make(f"hunting/{name}")

    assert env.n_actors == 2
    assert params == env.default_params


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("gymnax/CartPole-v0", "gymnax/CartPole-v1"),
        ("CartPole-v1", "gymnax/CartPole-v1"),
        ("gymnax/cartpole-v1", "gymnax/CartPole-v1"),
        ("simple_spread", "jaxmarl/MPE_simple_spread_v3"),
        ("jaxmarl/MPE_simple_spread_v2", "jaxmarl/MPE_simple_spread_v3"),
        ("hunting/discret", "hunting/discrete"),
    ],
)
def test_unknown_ids_are_refused_with_the_nearest_ids_and_the_command(env_id, nearest):
    with pytest.raises(ValueError, match="unknown environment id") as refusal:
        make(env_id)

    assert f"{env_id!r}. Did you mean {nearest}" in str(refusal.value)
    assert "`jaxagents envs`" in str(refusal.value)


@pytest.mark.parametrize("env_id", [None, 3, object])
def test_what_is_no_id_is_refused(env_id):
    with pytest.raises(TypeError, match=r"is no id, such as 'gymnax/CartPole-v1'; agents take"):
        make(env_id)


def test_ids_unlike_any_other_are_refused_with_the_command_alone():
    with pytest.raises(ValueError, match=r"'\?\?\?'\. The command `jaxagents envs` lists all"):
        make("???")


@pytest.mark.parametrize(
    ("env_id", "may_be_users"), [("mine/door", True), ("mine:Door", True), ("hunting/door", False)]
)
def test_ids_of_users_are_refused_with_the_way_to_make_commands_know_them(env_id, may_be_users):
    with pytest.raises(ValueError, match="unknown environment id") as refusal:
        make(env_id)

    remedy = "an entry point of an installed package (docs/plugins.md)"
    assert (remedy in str(refusal.value)) == may_be_users


@pytest.mark.parametrize("name", ["LearnedPolicyEnemySMAX", "JaxRobotarium_rware"])
def test_unsupported_environments_of_jaxmarl_are_distinguished_from_unknown_ones(name):
    with pytest.raises(ValueError, match=f"^jaxmarl/{name} (needs|is not supported)"):
        make(f"jaxmarl/{name}")


def test_environments_of_an_extra_are_listed_only_if_it_is_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not registry.ids_of_extras().keys() & set(registered_ids())

    monkeypatch.setattr("importlib.util.find_spec", lambda name: True if name == "brax" else None)
    listed = registry.ids_of_extras().keys() & set(registered_ids())
    assert {each.partition("/")[0] for each in listed} == {"jaxmarl", "brax"}
    assert set(registry.MABRAX_IDS) < listed


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "cause"),
    [
        ("gymnax/CartPole-v1", {"max_steps_in_episode": 9}, r"env_params\.replace"),
        ("gymnax/FrozenLake-misc", {"map_name": "9x9"}, "must be '4x4' or '8x8'"),
        ("jaxmarl/MPE_simple_spread_v3", {"nmu_agents": 2}, "unexpected keyword argument"),
        ("jaxmarl/MPE_simple_spread_v3", {"action_type": "box"}, "not supported"),
        ("jaxmarl/MPE_simple_reference_v3", {"num_agents": 3}, "only supports 2 agents"),
        ("jaxmarl/MPE_simple_facmac_3a_v1", {"max_steps": 9}, "unexpected keyword argument"),
        (
            "jaxmarl/HeuristicEnemySMAX",
            {"scenario": "3n"},
            "unknown scenario '3n'. Did you mean 3m",
        ),
        ("jaxmarl/overcooked", {"layout": "ring"}, "unknown layout 'ring'"),
        ("hunting/discrete", {"capture_radius": 9.0}, r"env_params\.replace"),
        ("gymnasium/FrozenLake-v1", {"map_name": "5x5"}, "the library does not know '5x5'; give"),
    ],
)
def test_refused_arguments_are_named_with_the_id(env_id, env_kwargs, cause):
    ((name, value),) = env_kwargs.items()

    with pytest.raises(
        ValueError, match=f"^{env_id} cannot be constructed with {name}={value!r}: .*{cause}"
    ):
        make(env_id, **env_kwargs)


def test_errors_of_a_library_are_its_own_where_no_arguments_are_given(monkeypatch):
    def fail():
        raise ValueError("its data are missing")

    monkeypatch.setattr(registry, "load", lambda _: fail)
    with pytest.raises(ValueError, match=r"^its data are missing$"):
        make("gymnax/CartPole-v1")


class OwnEnvironment:
    n_actors = 2

    def __init__(self, size=3):
        self.size = size

    def action_space(self, params):
        return registry.as_space(gymnax.environments.spaces.Box(-1, np.array([1, 2]), (2,)))

    def reset(self, rng, params):
        return jax.numpy.zeros((2, self.size), "int8"), None

    def step(self, rng, state, action, params):
        observation, state = self.reset(rng, params)
        no = jax.numpy.zeros(2, bool)
        info = {"final_observation": observation}
        return observation, state, jax.numpy.zeros(2), no, no, info


def test_own_environments_can_be_registered(own_registrations):
    register("mine/room", OwnEnvironment)

    env, params = make("mine/room", size=5)

    assert (type(env), env.size, params) == (OwnEnvironment, 5, None)
    assert registered_ids()[-1] == "mine/room"
    info = describe("mine/room")
    assert info.observation_shape == (3,)
    assert info.observation_dtype == "int8"
    assert info.action_space == "Box(2,) from -1 to [1. 2.]"
    assert info.truncation_rule == "the environment's own"


@pytest.mark.parametrize("env_id", ["gymnax/CartPole-v1", "mine/room"])
def test_a_taken_id_is_refused(own_registrations, env_id):
    register("mine/room", OwnEnvironment)

    with pytest.raises(ValueError, match=f"^the environment '{env_id}' is taken; choose another"):
        register(env_id, lambda: OwnEnvironment(size=4))


def test_the_same_environment_may_be_registered_again_under_either_name(own_registrations):
    register("mine/room", OwnEnvironment)
    register_environment("mine/room", OwnEnvironment)

    assert registered_ids().count("mine/room") == 1
    with pytest.raises(TypeError, match=r"^3 cannot be called; give a class or a function\.$"):
        register_environment("mine/number", 3)


ROOM = """
from tests.environments.test_registry import OwnEnvironment
"""


def test_environments_of_installed_packages_are_listed_and_made(
    own_registrations, tmp_path, monkeypatch, capsys
):
    entry = "rooms/room = room_pack:OwnEnvironment"
    install(monkeypatch, tmp_path, "room-pack", ROOM, environments=entry)

    env, params = make("rooms/room", size=5)

    assert (type(env).__name__, env.size, params) == ("OwnEnvironment", 5, None)
    assert registered_ids()[-1] == "rooms/room"
    with pytest.raises(ValueError, match=r"'rooms/roam'\. Did you mean rooms/room\?"):
        make("rooms/roam")
    with pytest.raises(ValueError, match=r"^rooms/room cannot be constructed with width=5: "):
        make("rooms/room", width=5)
    assert cli.main(["envs", "rooms/"]) == 0
    assert "Box(2,) from -1 to [1. 2.]" in capsys.readouterr().out


def test_a_broken_package_is_named_and_the_other_environments_are_listed(
    own_registrations, tmp_path, monkeypatch, capsys
):
    register("rooms/whole", OwnEnvironment)
    entry = "rooms/broken = room_pack:OwnEnvironment"
    install(monkeypatch, tmp_path, "room-pack", "", environments=entry)

    with pytest.raises(EntryPointError) as refusal:
        make("rooms/broken")
    assert str(refusal.value) == (
        "the environment 'rooms/broken' of the package room-pack cannot be loaded by its entry "
        "point 'room_pack:OwnEnvironment' in jaxagents.environments: AttributeError: module "
        "'room_pack' has no attribute 'OwnEnvironment'"
    )
    assert cli.main(["envs", "rooms/"]) == 0
    _, whole, broken = capsys.readouterr().out.splitlines()
    assert "Box(2,)" in whole
    assert f"not available here: {refusal.value}" in broken


LIMIT_100 = "time limit: max_steps_in_episode = 100"
TERMINAL = "terminal time limit"
MPE_LIMIT = "time limit: the step after max_steps = 25 steps is the last"


@pytest.mark.parametrize(
    ("env_id", "info"),
    [
        (
            "gymnax/FrozenLake-misc",
            (1, (), "int32", "Discrete(4)", (), LIMIT_100),
        ),
        (
            "gymnax/PointRobot-misc",
            (1, (6,), "float32", "Box(2,) from -0.1 to 0.1", (), LIMIT_100),
        ),
        (
            "jaxmarl/MPE_simple_spread_v3",
            (3, (18,), "float32", "Discrete(5)", (TERMINAL,), MPE_LIMIT),
        ),
        (
            "jaxmarl/MPE_simple_tag_v3",
            (4, (16,), "float32", "Discrete(5)", ("teams of 3 and 1", TERMINAL), MPE_LIMIT),
        ),
        ("hunting/discrete", (2, (6,), "float32", "Discrete(4)", (), "time limit: 100 steps")),
    ],
)
def test_environments_are_described(env_id, info):
    assert describe(env_id) == (env_id, *info)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [("gymnax/CartPole-v1", {}), ("jaxmarl/MPE_simple_spread_v3", {"num_agents": 4})],
)
def test_a_missing_platform_is_named_instead_of_jaxs_own_error(env_id, env_kwargs):
    code = f"import jaxagents\njaxagents.make({env_id!r}, **{env_kwargs})"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": "nothing"},
        capture_output=True,
        text=True,
    )
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("ValueError: JAX_PLATFORMS=nothing: ")
    assert last.endswith("; unset it, or install jax for that platform.")

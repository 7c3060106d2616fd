"""Networks over entities: their order, their number, and what of an observation they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.config import Layers
from jaxagents.entities import Entities, EntityKind
from jaxagents.networks.entities import (
    EntityAttention,
    NetworkContext,
    attention,
    deep_sets,
    entities_in,
)
from tests.agents import WALK, assert_trees_close, tiny

# The own feature; two allies of two features; one feature of three enemies, and another one.
ALLIES = EntityKind(2, ((1, 2),))
ENEMIES = EntityKind(3, ((5, 1), (8, 1)), first_action=2)
SMALL = Layers(hidden_sizes=(8,), memory_size=8)


def layout(n_allies: int = 2, n_enemies: int = 3) -> Entities:
    """Return own features, then allies, then enemies of two features each."""
    kinds = {
        "allies": EntityKind(n_allies, ((2, 2),)),
        "enemies": EntityKind(n_enemies, ((2 + 2 * n_allies, 2),), first_action=1),
    }
    return Entities.of(kinds, 2 + 2 * (n_allies + n_enemies), 2 + n_enemies)


def network(make, entities, recurrent=None, **arguments):
    context = NetworkContext(
        (entities.observation_size,), entities, SMALL, recurrent, "float32", False
    )
    n_outputs = 2 + dict(entities.kinds)["enemies"].count
    return make(n_outputs, context, size=8, **arguments)


def with_larger_logits(params):
    """Scale the last layers, whose initial outputs are close to 0, and shift the biases from 0."""

    def change(leaf):
        return leaf * 30 if 0 < leaf.std() < 0.05 else jnp.where(leaf == 0, 0.3, leaf)

    return jax.tree.map(change, params)


@pytest.mark.parametrize("make", [pytest.param(deep_sets, marks=pytest.mark.slow), attention])
def test_the_order_of_entities_only_orders_the_actions_that_are_directed_at_them(make):
    entities = layout()
    module = network(make, entities)
    features = jax.random.normal(jax.random.key(0), (4, entities.observation_size))
    params = with_larger_logits(jax.jit(module.init)(jax.random.key(1), features))
    apply = jax.jit(module.apply)
    logits = apply(params, features)
    swapped_allies = features[:, [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]]
    np.testing.assert_allclose(apply(params, swapped_allies), logits, atol=1e-6)
    rotated_enemies = features[:, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 6, 7]]
    np.testing.assert_allclose(
        apply(params, rotated_enemies), logits[:, [0, 2, 3, 1, 4]], atol=1e-6
    )
    assert np.std(np.asarray(logits)[:, 1:4], axis=1).min() > 1e-3


@pytest.mark.parametrize(
    ("make", "recurrent"),
    [(deep_sets, None), (attention, None), pytest.param(attention, "gru", marks=pytest.mark.slow)],
)
def test_an_absent_entity_is_as_none_so_parameters_fit_every_number(make, recurrent):
    larger, smaller = layout(), layout(n_allies=1)
    features = jax.random.normal(jax.random.key(0), (3, 4, smaller.observation_size))
    absent = jnp.zeros((*features.shape[:-1], 2))
    filled = jnp.concatenate([features[..., :4], absent, features[..., 4:]], axis=-1)
    others = ()
    if recurrent is not None:
        others = jnp.zeros((4, 8)), jnp.zeros((3, 4), bool)
    module = network(make, larger, recurrent)
    params = with_larger_logits(jax.jit(module.init)(jax.random.key(1), filled, *others))
    apply = jax.jit(module.apply)
    of_larger = apply(params, filled, *others)
    of_smaller = jax.jit(network(make, smaller, recurrent).apply)(params, features, *others)
    np.testing.assert_allclose(
        *(jax.tree.leaves(each)[0] for each in (of_larger, of_smaller)), atol=1e-6
    )
    of_nothing = apply(params, jnp.zeros_like(filled), *others)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_nothing))


def test_several_actions_of_an_entity_follow_it_alike():
    """Two cards: actions 1 and 2 play them, 3 and 4 discard them."""
    kind = EntityKind(2, ((1, 2),), first_action=(3, 1))
    entities = Entities.of({"cards": kind}, 5, n_actions=5)
    context = NetworkContext((5,), entities, SMALL, None, "float32", False)
    module = attention(5, context, size=8)
    features = jax.random.normal(jax.random.key(0), (4, 5))
    params = with_larger_logits(jax.jit(module.init)(jax.random.key(1), features))
    logits = module.apply(params, features)
    swapped = module.apply(params, features[:, [0, 3, 4, 1, 2]])
    np.testing.assert_allclose(swapped, logits[:, [0, 2, 1, 4, 3]], atol=1e-6)
    for one, other in ((1, 2), (3, 4), (1, 3)):
        assert not np.allclose(logits[:, one], logits[:, other], atol=1e-3)


def test_attention_to_nobody_sees_zeros():
    module = EntityAttention(layout(), 8, jnp.tanh)
    nobody = jnp.zeros((1, layout().observation_size))
    params = with_larger_logits(jax.jit(module.init)(jax.random.key(0), nobody))
    own, seen = jnp.split(jax.jit(module.apply)(params, nobody), 2, axis=-1)
    assert jnp.all(own != 0)
    assert jnp.all(seen == 0)


@pytest.mark.parametrize(("n_there", "scale"), [(0, 1.0), (1, 1.0), (3, 1.0), (3, 1e4)])
def test_attention_has_the_gradients_of_a_softmax(n_there, scale):
    """Also where its weights are constant: of a single entity, or saturated."""
    entities = Entities.of({"others": EntityKind(3, ((2, 2),))}, 8)
    module = EntityAttention(entities, 4, jnp.tanh, heads=1)
    features = jnp.array([0.3, -0.2, 1.0, 2.0, -0.5, 0.8, 0.7, -1.1]).at[2 + 2 * n_there :].set(0)
    params = module.init(jax.random.key(0), features[None])["params"]
    params["query"]["kernel"] *= scale

    def expected(params):
        def apply(name, x):
            layer = params[name]
            return x @ layer["kernel"] + layer.get("bias", 0.0)

        own = jnp.tanh(apply("own", features[:2]))
        each = jnp.tanh(apply("of_others", features[2:].reshape(3, 2)))
        if not n_there:
            return jnp.concatenate([own, jnp.zeros(4)])
        weights = jax.nn.softmax(each[:n_there] @ apply("query", own) / 2.0)  # sqrt(size)
        return jnp.concatenate([own, weights @ each[:n_there]])

    weights = jnp.arange(1.0, 9.0)
    actual = jax.grad(lambda each: module.apply({"params": each}, features[None])[0] @ weights)
    of_softmax = jax.grad(lambda each: expected(each) @ weights)(params)
    assert_trees_close(actual(params), of_softmax, rtol=1e-4, atol=1e-5)


def test_entities_are_taken_from_all_their_parts_and_the_rest_is_the_actors_own():
    entities = Entities.of({"allies": ALLIES, "enemies": ENEMIES}, 11, n_actions=5)
    features = jnp.arange(11.0)
    assert entities.own.tolist() == [0]
    each, is_there = entities_in(ENEMIES, features)
    assert each.tolist() == [[5, 8], [6, 9], [7, 10]]
    assert is_there.all()
    kind = EntityKind(2, ((0, 2),), absent=(-1.0, 0.0))
    assert entities_in(kind, jnp.array([-1.0, 0, 0, 0]))[1].tolist() == [False, True]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({}, "names no entities; name at least one"),
        ({"foes": EntityKind(2, ((3, 2),))}, "'foes' are features 3 to 6, but an .* has 6"),
        ({"foes": EntityKind(2, ((-1, 2),))}, "'foes' are features -1 to 2, but an .* has 6"),
        (
            {"foes": EntityKind(1, ((0, 1),), first_action=[0, 2])},
            r"first_action=\[0, 2\] of the entities 'foes' is neither an integer nor a tuple",
        ),
        (
            {"foes": EntityKind(1, ((0, 1),), first_action=-1)},
            "1 actions from -1 on should be directed at the entities 'foes'",
        ),
        (
            {"foes": EntityKind(2, ((0, 2),)), "food": EntityKind(1, ((3, 1),))},
            "feature 3 of an observation belongs to two entities",
        ),
        (
            {"foes": EntityKind(1, ((0, 2),), absent=(1.0,))},
            "2 features, but absent=.* has 1",
        ),
        (
            {"foes": EntityKind(3, ((0, 1),), first_action=2)},
            "3 actions from 2 on should be directed at the entities 'foes', but there are 4",
        ),
        (
            {"foes": EntityKind(2, ((0, 1),), first_action=(0, 3))},
            "2 actions from 3 on should be directed at the entities 'foes', but there are 4",
        ),
        (
            {
                "foes": EntityKind(2, ((0, 1),), first_action=(0, 2)),
                "food": EntityKind(1, ((2, 1),), first_action=3),
            },
            "action 3 is directed at entities twice; correct the first_action of 'foes', 'food'",
        ),
    ],
)
def test_kinds_that_do_not_fit_are_named(kinds, message):
    with pytest.raises(ValueError, match=message):
        Entities.of(kinds, 6, n_actions=4)


def spread(n: int, **changes):
    env, params = ja.make("jaxmarl/MPE_simple_spread_v3", num_agents=n, num_landmarks=n)
    return ja.DiscreteIPPO(env, params, tiny(**{"actor_network": "attention", **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize_observations": True}, "normalize_observations=True would change; set it to F"),
        ({"centralized_critic": True, "critic_network": "deep_sets"}, "critic that observes what"),
    ],
)
def test_networks_over_entities_say_what_they_need(changes, message):
    with pytest.raises(ValueError, match=message):
        spread(3, **changes)
    with pytest.raises(
        ValueError, match=r"attention cannot .* needs an environment with `entities`"
    ):
        ja.DiscreteIPPO(WALK, None, tiny(actor_network="attention"))


@pytest.mark.slow
def test_a_policy_of_three_actors_plays_with_five():
    small, large = (spread(n, critic_network="deep_sets") for n in (3, 5))
    learnt = small.init(jax.random.key(0), ja.HyperParameters())
    runner = large.init(jax.random.key(1), ja.HyperParameters(), start=learnt)
    observation, _ = large.env.reset(jax.random.key(2), large.env_params)
    assert large.policy(runner, observation).shape == (5,)
    for one, other in zip(
        jax.tree.leaves((learnt.actor.params, learnt.critic.params)),
        jax.tree.leaves((runner.actor.params, runner.critic.params)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_units_of_smax_see_allies_and_the_enemies_that_their_last_actions_attack():
    env, params = ja.make("jaxmarl/HeuristicEnemySMAX", scenario="3m")
    observation, state = jax.jit(env.reset)(jax.random.key(0), params)
    kinds = env.entities(params)
    assert kinds["enemies"].first_action == 5
    assert kinds["enemies"].first_action + kinds["enemies"].count == env.action_space(params).n
    battle = state.state
    positions, sight = np.asarray(battle.unit_positions), 9.0
    for name, units in (("allies", [1, 2]), ("enemies", [3, 4, 5])):
        each, is_there = entities_in(kinds[name], observation.features[0])
        vectors = positions[units] - positions[0]
        seen = np.linalg.norm(vectors, axis=1) < sight
        assert np.asarray(is_there).tolist() == seen.tolist()
        np.testing.assert_allclose(each[seen, 1:3], vectors[seen] / sight, atol=1e-5)


def test_actors_of_simple_spread_see_landmarks_and_each_other():
    env, params = ja.make("jaxmarl/MPE_simple_spread_v3", num_agents=4, num_landmarks=2)
    observation, state = jax.jit(env.reset)(jax.random.key(0), params)
    positions = np.asarray(state.p_pos)
    kinds = env.entities(params)
    landmarks, _ = entities_in(kinds["landmarks"], observation.features[1])
    np.testing.assert_allclose(landmarks, positions[4:] - positions[1], atol=1e-6)
    others, _ = entities_in(kinds["others"], observation.features[1])
    vectors = positions[[0, 2, 3]] - positions[1]
    assert others.shape == (3, 4)  # the library's order of the others differs between actors
    seen = np.asarray(others)[:, :2]
    np.testing.assert_allclose(seen[np.lexsort(seen.T)], vectors[np.lexsort(vectors.T)], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"num_agents": 3, "num_colors": 3, "num_ranks": 4, "hand_size": 3}
            | {"num_cards_of_rank": np.array([3, 2, 2, 2])},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["standard", "three players"],
)
def test_players_of_hanabi_see_cards_and_what_is_known_of_them(options):
    """Player 0 tells player 1 which cards have the first colour."""
    env, params = ja.make("jaxmarl/hanabi", **options)
    game = env.env
    n_players, n_ranks, n_cards = env.n_actors, game.num_ranks, game.num_colors * game.num_ranks
    _, state = jax.jit(env.reset)(jax.random.key(3), params)
    nothing = env.action_space(params).n - 1
    actions = jnp.full(n_players, nothing).at[0].set(2 * game.hand_size)
    observation, state, *_ = jax.jit(env.step_env)(jax.random.key(1), state, actions, params)
    hands = np.asarray(state.player_hands).reshape(n_players, game.hand_size, n_cards)
    kinds = env.entities(params)
    names = [name for name in kinds if name != "own_cards"]
    for player in range(n_players):
        seen = {n: entities_in(kind, observation.features[player])[0] for n, kind in kinds.items()}
        others = [(player + i) % n_players for i in range(1, n_players)]
        for name, other in zip(names, others, strict=True):
            np.testing.assert_array_equal(seen[name][:, :n_cards], hands[other])
            known, _ = entities_in(kinds["own_cards"], observation.features[other])
            np.testing.assert_allclose(seen[name][:, n_cards:], known, atol=1e-6)
    own, _ = entities_in(kinds["own_cards"], observation.features[1])
    has_color = np.any(hands[1, :, :n_ranks], axis=-1)
    assert set(has_color.tolist()) == {False, True}
    np.testing.assert_array_equal(own[:, n_cards], has_color)
    np.testing.assert_array_equal(own[:, :n_ranks].sum(axis=-1) > 0.99, has_color)
    for first_action, indices in zip(
        kinds["own_cards"].first_actions,
        (game.discard_action_range, game.play_action_range),
        strict=True,
    ):
        np.testing.assert_array_equal(first_action + np.arange(game.hand_size), indices)


@pytest.mark.parametrize(
    ("options", "known"),
    [({"action_type": "continuous"}, True), ({"observation_type": "conic"}, False)],
)
def test_other_interfaces_of_smax_direct_no_action_and_may_have_no_entities(options, known):
    env, params = ja.make("jaxmarl/HeuristicEnemySMAX", scenario="3m", **options)
    kinds = env.entities(params)
    assert (kinds is not None) == known
    assert known is False or kinds["enemies"].first_action is None
    agent = ja.IPPO(env, params, tiny(actor_network="deep_sets" if known else None))
    assert (agent.environments.entities is not None) == known

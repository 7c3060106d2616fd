"""Renderers, checked by the colours of the pixels that they draw."""

import functools

import jax
import numpy as np
import pytest
from PIL import Image, ImageColor

import jaxagents as ja
from jaxagents.environments.hunting import Hunting
from jaxagents.evaluation.episodes import Episode
from jaxagents.types import Observation
from jaxagents.visual.renderers import registry
from jaxagents.visual.renderers.canvas import Canvas, View, mixed, text_width
from jaxagents.visual.renderers.jaxmarl import shots
from jaxagents.visual.renderers.pictures import last_active_channel, wrapped
from jaxagents.visual.renderers.registry import make_scene
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, compose
from jaxagents.visual.replay import write_gif, write_mp4
from jaxagents.visual.style import COLOURS

BLUE, ORANGE, GREEN = COLOURS[:3]


def make_episode(states=None, n_actors=1, **changes):
    """Make an episode of these states, or of three steps, in which all actors are truncated."""
    n_steps = 3 if states is None else len(states) - 1
    ends = np.zeros((n_steps, n_actors), bool)
    ends[-1] = True
    fields = {
        "states": states and jax.tree.map(lambda *leaves: np.stack(leaves), *states),
        "observation": Observation(np.zeros((n_steps + 1, n_actors, 2), np.float32)),
        "action": np.zeros((n_steps, n_actors), np.int32),
        "reward": np.ones((n_steps, n_actors), np.float32),
        "active": np.ones((n_steps, n_actors), bool),
        "terminated": np.zeros((n_steps, n_actors), bool),
        "truncated": ends,
    }
    return Episode(**fields | changes)


def pixel(image, x, y):
    """Return the colour at x and y, given as fractions of the image from its lower left corner."""
    return image.getpixel((round(x * image.width), round((1 - y) * image.height)))


def n_pixels(image, colour, tolerance=3):
    """Count the pixels of this colour, within the tolerance per channel."""
    distance = np.abs(np.asarray(image).astype(int) - np.array(ImageColor.getrgb(colour)))
    return int(np.sum(np.max(distance, axis=-1) <= tolerance))


@functools.cache
def first_state(env_id, **env_kwargs):
    """Make an environment, and return it with its parameters and a first state."""
    env, params = ja.make(env_id, **env_kwargs)
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    return env, params, jax.device_get(state)


def test_a_canvas_draws_in_the_coordinates_of_its_view():
    canvas = Canvas(100, 50, View(0, 10, 0, 5))
    canvas.circle((8, 1), 0.5, BLUE)  # radius: 5 pixels
    image = canvas.finished()
    assert image.size == (100, 50)
    assert pixel(image, 0.8, 0.2) == ImageColor.getrgb(BLUE)
    assert n_pixels(image, BLUE) == pytest.approx(np.pi * 25, rel=0.2)


def test_mpe_draws_agents_and_landmarks_at_their_positions_in_their_colours():
    env, params, state = first_state("jaxmarl/MPE_simple_spread_v3")
    # The outermost entity is at 1.85 with a radius of 0.15: the view ends at 2.04.
    positions = np.array([[1.85, 0], [0, -1], [-1, 1], [0.5, 0.5], [-0.5, 0.5], [0, 0.5]])
    episode = make_episode([state, state.replace(p_pos=positions)], n_actors=3)
    image = make_scene(env, params, episode).draw(1)
    for (x, y), colour in zip(positions, (BLUE, ORANGE, GREEN, *3 * ["#404040"]), strict=True):
        # Right of the middle, which an agent's index covers.
        place = (x / 4.08 + 0.5 + (0.02 if colour != "#404040" else 0.0), y / 4.08 + 0.5)
        assert pixel(image, *place) == ImageColor.getrgb(colour)


def test_mpe_colours_agents_by_team():
    env, params, state = first_state("jaxmarl/MPE_simple_tag_v3")
    scene = make_scene(env, params, make_episode([state, state], n_actors=4))
    assert [actor.colour for actor in scene.actors] == [BLUE, BLUE, BLUE, ORANGE]
    assert [actor.name for actor in scene.actors][2:] == ["adversary_2", "agent_0"]


def test_mpe_rings_goals_and_writes_messages():
    env, params, state = first_state("jaxmarl/MPE_simple_speaker_listener_v4")
    positions = np.array([[-0.5, 0], [0.5, 0], [-0.8, 0.8], [0, 0.8], [0.8, 0.8]], np.float32)
    silent = state.replace(p_pos=positions, goal=np.int32(1))
    speaking = silent.replace(c=np.array([[0, 1, 0], [0, 0, 0]], np.float32))
    scene = make_scene(env, params, make_episode([silent, speaking], n_actors=2))
    before, after = np.asarray(scene.draw(0)), np.asarray(scene.draw(1))
    # The view ends at 1.1; the letter stands at the upper right of the speaker.
    rows, columns = np.nonzero(np.any(before != after, axis=-1))
    assert len(rows) > 20
    assert 0.3 * WIDTH < columns.min() < columns.max() < 0.4 * WIDTH
    assert 0.4 * WIDTH < rows.min() < rows.max() < 0.5 * WIDTH
    rings = []
    for x, y in positions[2:]:
        place = ((x + float(env.env.rad[3]) + 0.028) / 2.2 + 0.5, y / 2.2 + 0.5)
        rings.append(max(pixel(scene.draw(0), *place)) < 100)
    assert rings == [False, True, False]


def test_smax_colours_units_by_team_and_draws_dead_ones_as_crosses():
    env, params, state = first_state("jaxmarl/SMAX", scenario="3m")
    alive = np.array([True, False, True, True, True, True])
    later = state.replace(unit_alive=alive, unit_health=state.unit_health * alive)
    episode = make_episode([state, later], n_actors=6)
    scene = make_scene(env, params, episode)
    before, after = scene.draw(0), scene.draw(1)
    assert n_pixels(after, BLUE) < 0.75 * n_pixels(before, BLUE)
    assert n_pixels(after, ORANGE) == pytest.approx(n_pixels(before, ORANGE), rel=0.1)
    assert n_pixels(before, DEAD) == 0 < n_pixels(after, DEAD)
    np.testing.assert_array_equal(scene.alive, [[True] * 6, alive])


def test_smax_shots_are_pairs_of_shooter_and_target():
    env, _, state = first_state("jaxmarl/SMAX", scenario="3m")
    # Ally 0 shoots at enemy 1, and enemy 0 at the last ally; the others move.
    shooting = state.replace(prev_attack_actions=np.array([6, 0, 0, 5, 0, 0]))
    states = make_episode([state, shooting], n_actors=6).states
    assert shots(env.env, states, 1) == [(0, 4), (3, 2)]
    assert shots(env.env, states, 0) == []


def test_smax_draws_a_shot_as_a_pale_line_from_shooter_to_target():
    env, params, state = first_state("jaxmarl/SMAX", scenario="3m")
    # Ally 0 shoots at enemy 1, at the same height on the other side.
    positions = np.array([[4, 16], [4, 4], [4, 28], [28, 4], [28, 16], [28, 28]], np.float32)
    still = state.replace(unit_positions=positions)
    shooting = still.replace(prev_attack_actions=np.array([6, 0, 0, 0, 0, 0]))
    scene = make_scene(env, params, make_episode([still, shooting], n_actors=6))
    before, after = np.asarray(scene.draw(0)), np.asarray(scene.draw(1))
    rows, columns = np.nonzero(np.any(before != after, axis=-1))
    assert set(rows) <= set(range(WIDTH // 2 - 2, WIDTH // 2 + 2))
    assert np.ptp(columns) > WIDTH / 2
    assert n_pixels(after, mixed(BLUE, "#ffffff", 0.4), tolerance=30) > WIDTH / 2


def test_hunting_draws_actors_at_their_positions_and_crosses_a_captured_prey():
    env, params, state = first_state("hunting/discrete")
    apart = state.replace(positions=np.array([[-0.5, 0.5], [0.5, -0.5]], np.float32))
    near = state.replace(positions=np.array([[0.45, -0.5], [0.5, -0.5]], np.float32))
    true = np.ones((1, 2), bool)
    captured = make_episode([apart, near], n_actors=2, terminated=true, truncated=~true)
    scene = make_scene(env, params, captured)
    image = scene.draw(0)
    scale = (WIDTH - 32) / WIDTH / 2
    assert pixel(image, 0.5 - 0.5 * scale, 0.5 + 0.5 * scale) == ImageColor.getrgb(ORANGE)
    assert pixel(image, 0.5 + 0.5 * scale, 0.5 - 0.5 * scale) == ImageColor.getrgb(BLUE)
    assert n_pixels(image, "#000000") == 0 < n_pixels(scene.draw(1), "#000000")
    escaped = make_scene(env, params, make_episode([apart, near], n_actors=2))
    assert n_pixels(escaped.draw(1), "#000000") == 0


CONTROLS = {
    "CartPole-v1": {"x": 1.2},
    "Pendulum-v1": {"theta": 1.0},
    "Acrobot-v1": {"joint_angle2": 1.0},
    "MountainCar-v0": {"position": 0.2},
    "MountainCarContinuous-v0": {"position": 0.2},
}


@pytest.mark.parametrize("name", CONTROLS)
def test_classic_control_draws_the_state(name):
    env, params, state = first_state(f"gymnax/{name}")
    moved = state.replace(**{key: np.float32(each) for key, each in CONTROLS[name].items()})
    action = np.zeros((2, 1, 1), np.float32) if "Cont" in name or "Pend" in name else None
    changes = {} if action is None else {"action": action}
    scene = make_scene(env, params, make_episode([state, state, moved], **changes))
    first, same, last = (np.asarray(scene.draw(n_steps)) for n_steps in range(3))
    assert n_pixels(first, ORANGE) > 100
    np.testing.assert_array_equal(first, same)
    assert np.any(first != last)


def test_the_position_of_a_cart_is_to_scale():
    env, params, state = first_state("gymnax/CartPole-v1")
    moved = state.replace(x=np.float32(1.2), theta=np.float32(0.0))
    image = np.asarray(make_scene(env, params, make_episode([state, moved])).draw(1))
    _, columns = np.nonzero(np.max(np.abs(image.astype(int) - ImageColor.getrgb(ORANGE)), -1) < 12)
    # Half the way to the limit, 2.4, which is drawn at 1 / 1.15 of half the width.
    assert columns.mean() == pytest.approx(WIDTH / 2 * (1 + 0.5 / 1.15), abs=2)


def test_a_cell_shows_its_last_active_channel():
    channels = np.zeros((1, 4, 3))
    channels[0, 1, 0] = channels[0, 2, 2] = channels[0, 3, :2] = 1
    np.testing.assert_array_equal(last_active_channel(channels), [[0, 1, 3, 2]])


def test_the_image_that_a_single_actor_observes_is_drawn():
    env, params = ja.make("gymnax/Breakout-MinAtar")
    features = np.zeros((4, 1, 10, 10, 4), np.float32)
    features[0, 0, 9, 4, 0] = 1.0  # in the lowest row
    scene = make_scene(env, params, make_episode(observation=Observation(features)))
    assert pixel(scene.draw(0), 0.45, 0.05) == ImageColor.getrgb(BLUE)
    assert n_pixels(scene.draw(1), BLUE) == 0


# The number of actors, and whether each is drawn in its colour.
OTHERS = {
    "gymnax/FourRooms-misc": (1, True),
    "jaxmarl/coin_game": (2, True),
    "jaxmarl/hanabi": (2, False),  # text
    "jaxmarl/jaxnav": (2, True),
    "jaxmarl/overcooked": (2, True),
    "jaxmarl/storm": (2, False),  # paler within an actor's field of view
    "jaxmarl/storm_2p": (2, False),
    "jaxmarl/storm_np": (2, False),
    "jaxmarl/switch_riddle": (3, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", OTHERS)
def test_every_other_renderer_draws_a_state_as_wide_as_the_frame(env_id, monkeypatch):
    monkeypatch.setattr(registry, "strip_scene", None)  # fails where no renderer is found
    n_actors, coloured = OTHERS[env_id]
    env, params, state = first_state(env_id)
    episode = make_episode([state, state], n_actors=n_actors)
    scene = make_scene(env, params, episode)
    image = scene.draw(1)
    assert image.width == WIDTH
    assert len(scene.actors) == n_actors
    assert len(set(np.asarray(image).reshape(-1, 3).max(axis=1))) > 3  # not blank
    for actor in scene.actors:
        assert n_pixels(image, actor.colour) > 50 or not coloured


def test_jaxnav_crosses_out_robots_from_their_collision_on_and_not_at_the_time_limit():
    env, params, first = first_state("jaxmarl/jaxnav")
    collides = first.replace(move_term=np.array([True, False]))
    ends = first.replace(done=np.array([True, True]))  # also unless they have collided
    scene = make_scene(env, params, make_episode([first, collides, ends], n_actors=2))
    drawn = [scene.draw(n_steps) for n_steps in range(3)]
    ring, other = (n_pixels(drawn[2], actor.colour) for actor in scene.actors)
    assert n_pixels(drawn[0], DEAD) == 0
    assert n_pixels(drawn[1], DEAD) == n_pixels(drawn[2], DEAD) > 50
    assert n_pixels(drawn[0], scene.actors[0].colour) > ring
    assert n_pixels(drawn[0], scene.actors[1].colour) == other


def test_printed_lines_are_broken_where_the_picture_ends():
    discards = "Discards: " + " ".join(f"G{rank}" for rank in range(40))
    lines = wrapped(discards)
    assert len(lines) > 1
    assert " ".join(lines) == discards
    assert max(text_width(line, 12) for line in lines) < WIDTH
    assert wrapped("Fireworks:   G1  R2") == ["Fireworks:   G1  R2"]
    assert wrapped("Discards: " + " " * 200) == ["Discards:"]


class Larger(Hunting):
    """Hunting in an arena that a user has derived."""

    def action_space(self, params):
        return ja.Discrete(2)

    def _directions(self, action):
        raise NotImplementedError


def test_environments_derived_from_hunting_are_drawn_as_hunting():
    _, params, state = first_state("hunting/discrete")
    scene = make_scene(Larger(), params, make_episode([state, state], n_actors=2))
    assert [actor.name for actor in scene.actors] == ["predator", "prey"]


class Unknown(ja.Environment):
    """An environment of three actors without a renderer."""

    n_actors = 3

    def action_space(self, params):
        return ja.Discrete(3)

    def reset_env(self, rng, params):
        raise NotImplementedError

    step_env = reset_env


class Painted(Unknown):
    """An environment that draws itself: twice as wide as high, the darker the later."""

    frames_per_second = 5.0

    def draw(self, state, params):
        return np.full((10, 20, 3), 255 - params * int(state), np.uint8)


def test_an_environment_that_draws_itself_is_shown_as_it_draws():
    episode = make_episode([np.array(time) for time in range(4)], n_actors=3)
    scene = make_scene(Painted(), 50, episode)
    image = scene.draw(2)
    assert (image.size, scene.seconds_per_step) == ((WIDTH, WIDTH // 2), 0.2)
    assert n_pixels(image, "#9B9B9B", tolerance=0) == WIDTH * WIDTH // 2  # 255 - 2 * 50


def test_what_an_environment_draws_must_be_a_picture():
    class Grey(Painted):
        def draw(self, state, params):
            return np.zeros((4, 4))

    scene = make_scene(Grey(), None, make_episode([np.array(0)] * 2, n_actors=3))
    with pytest.raises(ValueError, match=r"^Grey.draw drew ndarray of shape \(4, 4\)"):
        scene.draw(0)


def test_an_unknown_environment_is_drawn_as_strips_up_to_the_current_step():
    mask = np.ones((4, 3, 3), bool)
    mask[:, 0, 1:] = False  # only action 0 is available to the first actor
    dead = np.ones((3, 3), bool)
    dead[1:, 2] = False
    observation = Observation(np.ones((4, 3, 2), np.float32), action_mask=mask)
    full = make_episode(n_actors=3, active=dead, observation=observation)
    scene = make_scene(Unknown(), None, full)
    images = [scene.draw(n_steps) for n_steps in range(4)]
    assert len({image.size for image in images}) == 1
    # Each living actor's reward adds a green bar per step.
    green = [n_pixels(image, GREEN) - n_pixels(images[0], GREEN) for image in images]
    assert 0 == green[0] < green[1] < green[2] < green[3]
    assert green[1] / (green[3] - green[2]) == pytest.approx(3 / 2, rel=0.15)
    # Grey marks unavailable actions and, from the second step on, the dead actor.
    grey = [n_pixels(image, DEAD) for image in images]
    assert 0 < grey[1] < grey[2] - grey[1]


def fail_to_import(*_):
    raise ImportError("its pictures need another package")


@pytest.mark.parametrize(
    "renderers", [{}, {"SwitchRiddle": fail_to_import}], ids=["unknown", "not installed"]
)
def test_a_library_environment_without_a_renderer_is_drawn_as_strips(renderers, monkeypatch):
    monkeypatch.setattr(registry, "_JAXMARL_RENDERERS", renderers)
    env, params, state = first_state("jaxmarl/switch_riddle")
    episode = make_episode([state, state], n_actors=3)
    drawn = make_scene(env, params, episode).draw(1)
    strips = make_scene(env, params, episode._replace(states=None)).draw(1)
    np.testing.assert_array_equal(drawn, strips)


def test_vector_actions_are_drawn_as_lines():
    env, params = ja.make("hunting/continuous")
    action = np.linspace(-1, 1, 12).reshape(3, 2, 2).astype(np.float32)
    episode = make_episode(n_actors=2, action=action)
    drawn = make_scene(env, params, episode).draw(3)
    flat = make_scene(env, params, episode._replace(action=0 * action)).draw(3)
    assert np.any(np.asarray(drawn) != np.asarray(flat))


def entries(frame):
    """Cut out the actors' entries below the scene."""
    return frame.crop((0, frame.height - 50, frame.width, frame.height))


def test_entries_strike_through_dead_actors_and_fade_those_without_a_choice():
    mask = np.ones((4, 3, 3), bool)
    mask[2, 1, 1:] = False
    active = np.ones((3, 3), bool)
    active[1:, 2] = False
    observation = Observation(np.zeros((4, 3, 2), np.float32), action_mask=mask)
    episode = make_episode(n_actors=3, active=active, observation=observation)
    scene = make_scene(Unknown(), None, episode)
    below = [entries(compose(scene, episode, n_steps)) for n_steps in range(4)]
    assert [n_pixels(each, GREEN) > 50 for each in below] == [True, False, False, False]
    assert [n_pixels(each, DEAD) > 50 for each in below] == [False, True, True, True]
    assert [n_pixels(each, ORANGE) > 50 for each in below] == [True, True, False, True]
    assert all(n_pixels(each, BLUE) > 50 for each in below)


def test_a_long_name_is_shortened_and_leaves_room_for_the_return():
    episode = make_episode()
    scene = make_scene(SINGLE, None, episode)

    def entry_of(name):
        frame = compose(scene._replace(actors=[Actor(name, BLUE)]), episode, 3)
        return np.asarray(entries(frame))

    short, long, longer = map(entry_of, ("a", 100 * "a", 200 * "a"))
    assert np.any(short != long)
    np.testing.assert_array_equal(long, longer)
    right = np.s_[:, -45:]  # the return
    np.testing.assert_array_equal(short[right], long[right])


def test_only_the_last_frame_says_how_the_episode_ended():
    at_end, never = np.array([[False], [False], [True]]), np.zeros((3, 1), bool)
    truncated, terminated = make_episode(), make_episode(terminated=at_end, truncated=never)
    frames = [
        [np.asarray(compose(make_scene(SINGLE, None, each), each, n_steps)) for n_steps in (2, 3)]
        for each in (truncated, terminated)
    ]
    header = np.s_[:28]
    np.testing.assert_array_equal(frames[0][0][header], frames[1][0][header])
    assert np.any(frames[0][1][header] != frames[1][1][header])
    right = np.s_[:28, WIDTH // 2 :]
    assert n_pixels(frames[0][0][right], "#333333") == 0 < n_pixels(frames[0][1][right], "#333333")


class Single(Unknown):
    n_actors = 1


SINGLE = Single()


def shades(n_frames):
    """Make frames that become redder one by one."""
    return [Image.new("RGB", (20, 11), (20 * index, 0, 0)) for index in range(n_frames)]


def test_a_gif_has_every_frame_and_holds_the_last(tmp_path):
    write_gif(shades(5), tmp_path / "five.gif", seconds_per_frame=0.1)
    with Image.open(tmp_path / "five.gif") as gif:
        assert (gif.n_frames, gif.info["loop"], gif.size) == (5, 0, (20, 11))
        seen = []
        for index in range(5):
            gif.seek(index)
            seen.append((gif.info["duration"], gif.convert("RGB").getpixel((3, 3))))
    assert seen == [(1500 if i == 4 else 100, (20 * i, 0, 0)) for i in range(5)]


def fake_ffmpeg(tmp_path, monkeypatch, script):
    """Put a shell script in the place of ffmpeg."""
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_an_mp4_has_every_frame_and_holds_the_last(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, 'echo "$@" > "$0.log"; for last; do :; done; cat > "$last"')
    write_mp4(shades(3), tmp_path / "three.mp4", seconds_per_frame=0.5)
    pixels = np.frombuffer((tmp_path / "three.mp4").read_bytes(), np.uint8).reshape(-1, 11, 20, 3)
    assert pixels[:, 0, 0, 0].tolist() == [0, 20, 40, 40, 40]
    assert "-s 20x11 -r 2 " in (tmp_path / "ffmpeg.log").read_text()


def test_errors_of_ffmpeg_are_reported(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, "cat > /dev/null; echo no such codec >&2; exit 1")
    with pytest.raises(OSError, match="no such codec"):
        write_mp4(shades(3), tmp_path / "three.mp4", seconds_per_frame=0.5)


PAINTED = make_episode([np.array(time) for time in range(4)], n_actors=3)


def test_a_film_shows_every_state_and_is_replaced_by_another(tmp_path):
    path = tmp_path / "film.gif"
    for max_frames, n_frames in ((300, 4), (2, 2)):
        ja.film(PAINTED, path, Painted(), 50, max_frames)
        with Image.open(path) as gif:
            assert gif.n_frames == n_frames


def test_a_film_is_an_mp4_by_its_suffix_and_is_replaced_too(tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "film.mp4"
    ja.film(PAINTED, path, Painted(), 50)
    assert path.read_bytes()[4:8] == b"ftyp"
    ja.film(PAINTED, path, Painted(), 50)


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_film_replaces_no_file_of_others(name, tmp_path):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ValueError, match=rf"{name} exists and was not made by jaxagents; name"):
        ja.film(PAINTED, tmp_path / name, Painted(), 50)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_film_needs_a_known_suffix_and_two_frames(tmp_path):
    with pytest.raises(ValueError, match=r"film.avi does not end in one of .gif, .mp4, which"):
        ja.film(PAINTED, tmp_path / "film.avi", Painted(), 50)
    with pytest.raises(ValueError, match=r"^max_frames=1 cannot show"):
        ja.film(PAINTED, tmp_path / "film.gif", Painted(), 50, max_frames=1)
    assert not list(tmp_path.iterdir())

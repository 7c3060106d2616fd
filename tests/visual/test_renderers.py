"""Pictures of episodes, looked at by the colours of their pixels."""

import jax
import numpy as np
import pytest
from PIL import Image, ImageColor

import jaxagents as ja
from jaxagents.visual.style import COLOURS
from jaxagents.visual.renderers import registry as scenes
from jaxagents.visual.renderers.animation import write_gif, write_mp4
from jaxagents.visual.renderers.canvas import Canvas, View
from jaxagents.visual.renderers.image_observations import last_active_channel
from jaxagents.visual.renderers.scene import DEAD, WIDTH, compose
from jaxagents.visual.renderers.registry import make_scene
from jaxagents.visual.renderers.smax import shots
from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.types import Observation

BLUE, ORANGE, GREEN = COLOURS[:3]


def episode(states=None, n_actors=1, **changes):
    """Make an episode of the states given, or of three steps, truncated for all at its end."""
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
    return Trajectory(**fields | changes)


def pixel(image, x, y):
    """Return the colour at a place given as fractions of the picture, from its lower left."""
    return image.getpixel((round(x * image.width), round((1 - y) * image.height)))


def n_pixels(image, colour, tolerance=3):
    """Count the pixels of almost this colour."""
    far = np.abs(np.asarray(image).astype(int) - np.array(ImageColor.getrgb(colour)))
    return int(np.sum(np.max(far, axis=-1) <= tolerance))


def first_state(env_id, **env_kwargs):
    env, params = ja.make(env_id, **env_kwargs)
    return env, params, jax.device_get(env.reset_env(jax.random.key(0), params)[1])


def test_a_canvas_draws_in_the_coordinates_of_its_view():
    canvas = Canvas(100, 50, View(0, 10, 0, 5))
    canvas.circle((8, 1), 0.5, BLUE)  # radius: 5 pixels
    image = canvas.finished()
    assert image.size == (100, 50)
    assert pixel(image, 0.8, 0.2) == ImageColor.getrgb(BLUE)
    assert n_pixels(image, BLUE) == pytest.approx(np.pi * 25, rel=0.2)


def test_particles_are_drawn_where_they_are_in_their_colours():
    env, params, state = first_state("jaxmarl/MPE_simple_spread_v3")
    # The farthest is at 1.85 with a radius of 0.15: the view ends at 2.04.
    positions = np.array([[1.85, 0], [0, -1], [-1, 1], [0.5, 0.5], [-0.5, 0.5], [0, 0.5]])
    trajectory = episode([state, state.replace(p_pos=positions)], n_actors=3)
    image = make_scene(env, params, trajectory).draw(1)
    for (x, y), colour in zip(positions, (BLUE, ORANGE, GREEN, *3 * ["#404040"]), strict=True):
        # Beside the middle, where an agent's number is.
        place = (x / 4.08 + 0.5 + (0.02 if colour != "#404040" else 0.0), y / 4.08 + 0.5)
        assert pixel(image, *place) == ImageColor.getrgb(colour)


def test_particles_of_teams_have_their_teams_colour():
    env, params, state = first_state("jaxmarl/MPE_simple_tag_v3")
    scene = make_scene(env, params, episode([state, state], n_actors=4))
    assert [actor.colour for actor in scene.actors] == [BLUE, BLUE, BLUE, ORANGE]
    assert [actor.name for actor in scene.actors][2:] == ["adversary_2", "agent_0"]


def test_goals_are_ringed_and_messages_written():
    env, params, state = first_state("jaxmarl/MPE_simple_speaker_listener_v4")
    positions = np.array([[-0.5, 0], [0.5, 0], [-0.8, 0.8], [0, 0.8], [0.8, 0.8]], np.float32)
    silent = state.replace(p_pos=positions, goal=np.int32(1))
    speaking = silent.replace(c=np.array([[0, 1, 0], [0, 0, 0]], np.float32))
    scene = make_scene(env, params, episode([silent, speaking], n_actors=2))
    before, after = np.asarray(scene.draw(0)), np.asarray(scene.draw(1))
    # The view ends at 1.1; the letter is written to the upper right of the speaker.
    rows, columns = np.nonzero(np.any(before != after, axis=-1))
    assert len(rows) > 20
    assert 0.3 * WIDTH < columns.min() < columns.max() < 0.4 * WIDTH
    assert 0.4 * WIDTH < rows.min() < rows.max() < 0.5 * WIDTH
    rings = []
    for x, y in positions[2:]:
        place = ((x + float(env.env.rad[3]) + 0.028) / 2.2 + 0.5, y / 2.2 + 0.5)
        rings.append(max(pixel(scene.draw(0), *place)) < 100)
    assert rings == [False, True, False]


def test_units_have_their_sides_colour_and_the_dead_are_crosses():
    env, params, state = first_state("jaxmarl/SMAX", scenario="3m")
    alive = np.array([True, False, True, True, True, True])
    later = state.replace(unit_alive=alive, unit_health=state.unit_health * alive)
    trajectory = episode([state, later], n_actors=6)
    scene = make_scene(env, params, trajectory)
    before, after = scene.draw(0), scene.draw(1)
    assert n_pixels(after, BLUE) < 0.75 * n_pixels(before, BLUE)
    assert n_pixels(after, ORANGE) == pytest.approx(n_pixels(before, ORANGE), rel=0.1)
    assert n_pixels(before, DEAD) == 0 < n_pixels(after, DEAD)
    np.testing.assert_array_equal(scene.alive, [[True] * 6, alive])


def test_a_shot_is_a_line_between_the_two():
    env, _, state = first_state("jaxmarl/SMAX", scenario="3m")
    # Ally 0 shoots at enemy 1, enemy 0 at the last ally; the others move.
    shooting = state.replace(prev_attack_actions=np.array([6, 0, 0, 5, 0, 0]))
    states = episode([state, shooting], n_actors=6).states
    assert shots(env.env, states, 1) == [(0, 4), (3, 2)]
    assert shots(env.env, states, 0) == []


def test_hunters_are_drawn_where_they_are_and_a_capture_is_crossed():
    env, params, state = first_state("hunting/discrete")
    apart = state.replace(positions=np.array([[-0.5, 0.5], [0.5, -0.5]], np.float32))
    near = state.replace(positions=np.array([[0.45, -0.5], [0.5, -0.5]], np.float32))
    yes = np.ones((1, 2), bool)
    captured = episode([apart, near], n_actors=2, terminated=yes, truncated=~yes)
    scene = make_scene(env, params, captured)
    image = scene.draw(0)
    scale = (WIDTH - 32) / WIDTH / 2
    assert pixel(image, 0.5 - 0.5 * scale, 0.5 + 0.5 * scale) == ImageColor.getrgb(ORANGE)
    assert pixel(image, 0.5 + 0.5 * scale, 0.5 - 0.5 * scale) == ImageColor.getrgb(BLUE)
    assert n_pixels(image, "#000000") == 0 < n_pixels(scene.draw(1), "#000000")
    escaped = make_scene(env, params, episode([apart, near], n_actors=2))
    assert n_pixels(escaped.draw(1), "#000000") == 0


CONTROLS = {
    "CartPole-v1": {"x": 1.2},
    "Pendulum-v1": {"theta": 1.0},
    "Acrobot-v1": {"joint_angle2": 1.0},
    "MountainCar-v0": {"position": 0.2},
    "MountainCarContinuous-v0": {"position": 0.2},
}


@pytest.mark.parametrize("name", CONTROLS)
def test_classic_control_draws_the_machine_as_it_stands(name):
    env, params, state = first_state(f"gymnax/{name}")
    moved = state.replace(**{key: np.float32(each) for key, each in CONTROLS[name].items()})
    action = np.zeros((2, 1, 1), np.float32) if "Cont" in name or "Pend" in name else None
    changes = {} if action is None else {"action": action}
    scene = make_scene(env, params, episode([state, state, moved], **changes))
    first, same, last = (np.asarray(scene.draw(n_steps)) for n_steps in range(3))
    assert n_pixels(first, ORANGE) > 100
    np.testing.assert_array_equal(first, same)
    assert np.any(first != last)


def test_a_carts_place_is_to_scale():
    env, params, state = first_state("gymnax/CartPole-v1")
    moved = state.replace(x=np.float32(1.2), theta=np.float32(0.0))
    image = np.asarray(make_scene(env, params, episode([state, moved])).draw(1))
    _, columns = np.nonzero(np.max(np.abs(image.astype(int) - ImageColor.getrgb(ORANGE)), -1) < 12)
    # Half of the way to the limit, 2.4, which is at 1 / 1.15 of half the picture.
    assert columns.mean() == pytest.approx(WIDTH / 2 * (1 + 0.5 / 1.15), abs=2)


def test_of_several_channels_the_last_that_is_on_is_shown():
    channels = np.zeros((1, 4, 3))
    channels[0, 1, 0] = channels[0, 2, 2] = channels[0, 3, :2] = 1
    np.testing.assert_array_equal(last_active_channel(channels), [[0, 1, 3, 2]])


def test_who_alone_sees_a_picture_has_it_shown():
    env, params = ja.make("gymnax/Breakout-MinAtar")
    features = np.zeros((4, 1, 10, 10, 4), np.float32)
    features[0, 0, 9, 4, 0] = 1.0  # in the lowest row
    scene = make_scene(env, params, episode(observation=Observation(features)))
    assert pixel(scene.draw(0), 0.45, 0.05) == ImageColor.getrgb(BLUE)
    assert n_pixels(scene.draw(1), BLUE) == 0


# How many actors there are, and whether each is seen in its colour.
OTHERS = {
    "gymnax/FourRooms-misc": (1, True),
    "jaxmarl/coin_game": (2, True),
    "jaxmarl/hanabi": (2, False),  # in words
    "jaxmarl/jaxnav": (2, True),
    "jaxmarl/overcooked": (2, True),
    "jaxmarl/storm": (2, False),  # in a paler colour where somebody looks
    "jaxmarl/storm_2p": (2, False),
    "jaxmarl/storm_np": (2, False),
    "jaxmarl/switch_riddle": (3, False),
}


@pytest.mark.parametrize("env_id", OTHERS)
def test_every_other_renderer_draws_a_state_as_wide_as_the_frame(env_id, monkeypatch):
    monkeypatch.setattr(scenes, "strip_scene", None)  # what nothing else can draw
    n_actors, coloured = OTHERS[env_id]
    env, params, state = first_state(env_id)
    trajectory = episode([state, state], n_actors=n_actors)
    scene = make_scene(env, params, trajectory)
    image = scene.draw(1)
    assert image.width == WIDTH
    assert len(scene.actors) == n_actors
    assert len(set(np.asarray(image).reshape(-1, 3).max(axis=1))) > 3  # it is not blank
    for actor in scene.actors:
        assert n_pixels(image, actor.colour) > 50 or not coloured


class Unknown(ja.Environment):
    """Three actors who do nothing known."""

    n_actors = 3

    def action_space(self, params):
        return ja.Discrete(3)

    def reset_env(self, rng, params):
        raise NotImplementedError

    step_env = reset_env


def test_an_unknown_environment_is_shown_as_strips_up_to_now():
    mask = np.ones((4, 3, 3), bool)
    mask[:, 0, 1:] = False  # the first actor can do nothing else
    dead = np.ones((3, 3), bool)
    dead[1:, 2] = False
    observation = Observation(np.ones((4, 3, 2), np.float32), action_mask=mask)
    full = episode(n_actors=3, active=dead, observation=observation)
    scene = make_scene(Unknown(), None, full)
    images = [scene.draw(n_steps) for n_steps in range(4)]
    assert len({image.size for image in images}) == 1
    # Rewards are green bars: one more for each step of each who lives.
    green = [n_pixels(image, GREEN) - n_pixels(images[0], GREEN) for image in images]
    assert 0 == green[0] < green[1] < green[2] < green[3]
    assert green[1] / (green[3] - green[2]) == pytest.approx(3 / 2, rel=0.15)
    # Grey: what cannot be done, and from the second step on the dead.
    grey = [n_pixels(image, DEAD) for image in images]
    assert 0 < grey[1] < grey[2] - grey[1]


def test_actions_that_are_vectors_are_lines():
    env, params = ja.make("hunting/continuous")
    action = np.linspace(-1, 1, 12).reshape(3, 2, 2).astype(np.float32)
    trajectory = episode(n_actors=2, action=action)
    drawn = make_scene(env, params, trajectory).draw(3)
    flat = make_scene(env, params, trajectory._replace(action=0 * action)).draw(3)
    assert np.any(np.asarray(drawn) != np.asarray(flat))


def entries(frame):
    """Cut off what is below the scene."""
    return frame.crop((0, frame.height - 50, frame.width, frame.height))


def test_frames_cross_out_the_dead_and_pale_who_has_no_choice():
    mask = np.ones((4, 3, 3), bool)
    mask[2, 1, 1:] = False
    active = np.ones((3, 3), bool)
    active[1:, 2] = False
    observation = Observation(np.zeros((4, 3, 2), np.float32), action_mask=mask)
    trajectory = episode(n_actors=3, active=active, observation=observation)
    scene = make_scene(Unknown(), None, trajectory)
    below = [entries(compose(scene, trajectory, n_steps)) for n_steps in range(4)]
    assert [n_pixels(each, GREEN) > 50 for each in below] == [True, False, False, False]
    assert [n_pixels(each, DEAD) > 50 for each in below] == [False, True, True, True]
    assert [n_pixels(each, ORANGE) > 50 for each in below] == [True, True, False, True]
    assert all(n_pixels(each, BLUE) > 50 for each in below)


def test_only_the_last_frame_says_how_the_episode_ended():
    yes, no = np.array([[False], [False], [True]]), np.zeros((3, 1), bool)
    cut, over = episode(), episode(terminated=yes, truncated=no)
    frames = [
        [np.asarray(compose(make_scene(LONE, None, each), each, n_steps)) for n_steps in (2, 3)]
        for each in (cut, over)
    ]
    header = np.s_[:28]
    np.testing.assert_array_equal(frames[0][0][header], frames[1][0][header])
    assert np.any(frames[0][1][header] != frames[1][1][header])
    right = np.s_[:28, WIDTH // 2 :]
    assert n_pixels(frames[0][0][right], "#333333") == 0 < n_pixels(frames[0][1][right], "#333333")


class Lone(Unknown):
    n_actors = 1


LONE = Lone()


def shades(n_frames):
    return [Image.new("RGB", (20, 11), (20 * index, 0, 0)) for index in range(n_frames)]


def test_a_gif_has_a_frame_for_each_picture_and_rests_on_the_last(tmp_path):
    write_gif(shades(5), tmp_path / "five.gif", seconds_per_frame=0.1)
    with Image.open(tmp_path / "five.gif") as gif:
        assert (gif.n_frames, gif.info["loop"], gif.size) == (5, 0, (20, 11))
        seen = []
        for index in range(5):
            gif.seek(index)
            seen.append((gif.info["duration"], gif.convert("RGB").getpixel((3, 3))))
    assert seen == [(1500 if i == 4 else 100, (20 * i, 0, 0)) for i in range(5)]


def fake_ffmpeg(tmp_path, monkeypatch, script):
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_films_are_made_by_ffmpeg_of_all_frames_and_a_rest(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, 'echo "$@" > "$0.log"; for last; do :; done; cat > "$last"')
    write_mp4(shades(3), tmp_path / "three.mp4", seconds_per_frame=0.5)
    pixels = np.frombuffer((tmp_path / "three.mp4").read_bytes(), np.uint8).reshape(-1, 11, 20, 3)
    assert pixels[:, 0, 0, 0].tolist() == [0, 20, 40, 40, 40]
    assert "-s 20x11 -r 2 " in (tmp_path / "ffmpeg.log").read_text()


def test_what_ffmpeg_complains_of_is_passed_on(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, "cat > /dev/null; echo no such codec >&2; exit 1")
    with pytest.raises(OSError, match="no such codec"):
        write_mp4(shades(3), tmp_path / "three.mp4", seconds_per_frame=0.5)

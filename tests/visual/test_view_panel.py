"""The rows below a film that show values and likely actions."""

import numpy as np
import pytest
from PIL import Image

from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from jaxagents.evaluation.episodes import Episode, EpisodeView
from jaxagents.types import Observation
from jaxagents.visual.renderers.scene import WIDTH, Scene, compose, make_actors
from jaxagents.visual.renderers.view_panel import with_view

TOP, ROW = 18, 30  # pixels: the first row begins below the title
ACTORS = make_actors(["first", "second"], None)


def episode(actions, alive=True) -> Episode:
    """Return an episode of two steps and two actors."""
    steps = np.zeros((2, 2))
    no = np.zeros((2, 2), bool)
    return Episode(
        states=None,
        observation=Observation(features=np.zeros((3, 2, 1))),
        action=np.array(actions),
        reward=steps,
        active=np.array([[True, True], [True, alive]]),
        terminated=no,
        truncated=no,
    )


def colours(picture, row: int) -> np.ndarray:
    """Return which pixels of an actor's row have its colour, without its badge and value."""
    pixels = np.asarray(picture)[TOP + ROW * row : TOP + ROW * (row + 1), 90:].astype(int)
    name = ACTORS[row].colour
    own = [int(name[i : i + 2], 16) for i in (1, 3, 5)]
    return np.abs(pixels - own).max(axis=-1) < 8


def panel(view, shown, space):
    scene = Scene(lambda _: Image.new("RGB", (WIDTH, 10)), ACTORS, 0.1)
    return with_view(scene, view, shown, space)


def test_bars_are_as_high_as_probabilities_and_the_taken_one_is_coloured():
    probabilities = np.tile([0.5, 0.25, 0.25], (2, 2, 1))
    view = EpisodeView(np.zeros((2, 2)), probabilities=probabilities)
    scene = panel(view, episode([[0, 2], [1, 1]]), Discrete(3))
    picture = scene.below(0)
    assert picture.size == (WIDTH, TOP + 2 * ROW)
    first, second = colours(picture, 0), colours(picture, 1)
    assert first.any(axis=1).sum() == pytest.approx(11, abs=1)  # half of 22 pixels
    assert second.any(axis=1).sum() == pytest.approx(5.5, abs=1)
    assert np.flatnonzero(first.any(axis=0)).max() < 90  # the left third
    assert np.flatnonzero(second.any(axis=0)).min() > 170  # the right third


def test_another_episodes_view_is_refused():
    view = EpisodeView(np.zeros((3, 2)), probabilities=np.ones((3, 2, 1)))
    with pytest.raises(ValueError, match=r"view has 3 steps of 2 actors, and the episode 2 steps"):
        panel(view, episode([[0, 0], [0, 0]]), Discrete(1))


def test_every_choice_has_its_own_taken_action():
    probabilities = np.tile([0.5, 0.5, 0.2, 0.3, 0.5], (2, 2, 1))
    view = EpisodeView(np.zeros((2, 2)), probabilities=probabilities)
    scene = panel(view, episode([[[1, 0], [0, 2]]] * 2), MultiDiscrete((2, 3)))
    taken = np.flatnonzero(colours(scene.below(0), 0).any(axis=0)) - 6  # from the first bar on
    width = 254 / 6  # five bars and a gap
    assert set((taken // width).astype(int)) == {1, 3}
    taken = np.flatnonzero(colours(scene.below(0), 1).any(axis=0)) - 6
    assert set((taken // width).astype(int)) == {0, 5}


def test_real_actions_lie_on_a_scale_between_the_bounds():
    quantiles = np.tile([[-0.5, 0.0, 0.5], [np.nan] * 3], (2, 2, 1, 1))
    view = EpisodeView(np.zeros((2, 2)), quantiles=quantiles)
    shown = episode(np.tile([1.0, 0.0], (2, 2, 1)))
    space = Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, np.inf], np.float32), (2,))
    own = colours(panel(view, shown, space).below(0), 0)
    rows, columns = np.nonzero(own)
    assert rows.max() <= 6  # the action is the upper bound: a line at the top
    assert columns.max() < 140  # nothing of the dimension that the actor lacks


@pytest.mark.parametrize("space", [Discrete(2), Box(-1.0, 1.0, ())])
def test_values_are_shown_if_a_distribution_does_not_tell_likely_actions(space):
    scene = panel(EpisodeView(np.ones((2, 2))), episode([[0, 0], [0, 0]]), space)
    shown = np.asarray(scene.below(0))[TOP:, :90]
    assert (shown != np.asarray(scene.below(2))[TOP:, :90]).any()  # at the end there are no values
    assert not colours(scene.below(0), 0).any()


def test_rows_are_empty_after_a_death_and_at_the_end():
    view = EpisodeView(np.ones((2, 2)), probabilities=np.full((2, 2, 2), 0.5))
    scene = panel(view, episode([[0, 0], [0, 0]], alive=False), Discrete(2))
    assert colours(scene.below(1), 0).any()
    assert not colours(scene.below(1), 1).any()
    assert not any(colours(scene.below(2), row).any() for row in (0, 1))


def test_a_frame_ends_with_the_panel():
    shown = episode([[0, 0], [0, 0]])
    view = EpisodeView(np.ones((2, 2)), probabilities=np.full((2, 2, 2), 0.5))
    scene = panel(view, shown, Discrete(2))
    frame, without = compose(scene, shown, 0), compose(scene._replace(below=None), shown, 0)
    assert frame.height == without.height + TOP + 2 * ROW
    expected = np.asarray(scene.below(0))
    np.testing.assert_array_equal(np.asarray(frame)[without.height :], expected)

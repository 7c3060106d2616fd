"""Renderer of JaxMARL's Hanabi and switch riddle: shows the text that the library prints."""

import contextlib
import io
from typing import Any

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.types import PyTree
from jaxagents.visual.renderers.canvas import Canvas, text_width
from jaxagents.visual.renderers.library_pictures import jax_state_at
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene
from jaxagents.visual.style import INK

_LINE_HEIGHT, _MARGIN, _TEXT_SIZE = 16, 10, 12  # pixels


def printed_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Show what the library prints for each state."""
    texts = [
        _printed_lines(env, jax_state_at(trajectory, n_steps))
        for n_steps in range(trajectory.n_steps + 1)
    ]
    height = max(len(lines) for lines in texts) * _LINE_HEIGHT + 2 * _MARGIN

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, height, background="#FAFAF8")
        for row, line in enumerate(texts[n_steps]):
            canvas.text((_MARGIN, _MARGIN + (row + 0.5) * _LINE_HEIGHT), line, _TEXT_SIZE, INK)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.5)


def _printed_lines(env: Any, state: PyTree) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        env.render(state)
    return [part for line in output.getvalue().strip().splitlines() for part in wrapped(line)]


def wrapped(line: str) -> list[str]:
    """Break a line between words into lines that fit the picture."""
    first, *words = line.rstrip().split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if text_width(longer, _TEXT_SIZE) <= WIDTH - 2 * _MARGIN:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines

"""Renderers: one module per kind of environment, each of which turns an episode into a `Scene`.

`registry` picks the renderer:

| environments | module |
| --- | --- |
| hunting | `hunting` |
| gymnax's CartPole, Pendulum, Acrobot, MountainCar | `classic_control` |
| gymnax's FourRooms and MetaMaze | `mazes` |
| JaxMARL's MPE | `mpe` |
| JaxMARL's SMAX | `smax` |
| JaxMARL's coin game | `coin_game` |
| JaxMARL's jaxnav | `jaxnav` |
| JaxMARL's overcooked, both versions | `overcooked` |
| JaxMARL's storm | `storm` |
| JaxMARL's Hanabi and switch riddle | `printed_states` |
| Gymnasium's and PettingZoo's that draw themselves or observe pixels | `host_pictures` |
| any other whose single actor observes an image | `image_observations` |
| everything else | `strip_charts` |

`scene` composes the frames, `canvas` draws their shapes, `film` writes them to a file, and
`library_pictures` serves the modules that call JaxMARL's own renderers.

They import as `visual` does; only `visual.replay` chooses a renderer.
"""

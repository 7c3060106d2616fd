"""Renderers: one module per kind of environment, each of which turns an episode into a `Scene`.

`registry` picks the renderer:

| environments | module |
| --- | --- |
| those with a ``draw`` of their own, Gymnasium's and PettingZoo's included | `pictures` |
| hunting | `hunting` |
| gymnax's CartPole, Pendulum, Acrobot, MountainCar, FourRooms and MetaMaze | `gymnax` |
| JaxMARL's MPE, SMAX, jaxnav and coin game | `jaxmarl` |
| JaxMARL's overcooked, storm, Hanabi and switch riddle, by the library | `pictures` |
| any other whose single actor observes an image | `pictures` |
| everything else | `strip_charts` |

`scene` composes the frames, and `canvas` draws their shapes.

They import as `visual` does; only `visual.replay` chooses a renderer.
"""

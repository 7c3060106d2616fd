"""Learning curves as plots, and episodes as animations.

`run_plots` draws the learning curves of runs, `replay` writes episodes with the help of
`renderers`, and `style` holds the colours and lines that all of them share. matplotlib and Pillow
are imported when the first picture is drawn; nothing here needs a display or touches matplotlib's
global state.

Imports `evaluation`, `environments`, `training`, `compiler` and the top-level modules. Only
`experiments` and `cli` import from here.
"""

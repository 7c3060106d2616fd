"""Learning curves as plots, and episodes as animations.

`plots` draws the learning curve of a training and `run_plots` those of recorded runs, `replay`
writes episodes with the help of `renderers`, and `style` holds the colours and lines that all of
them share. matplotlib and Pillow are imported when the first picture is drawn; nothing here needs a
display or touches matplotlib's global state.

Imports `evaluation`, `environments`, `training`, `compiler` and the top-level modules. Only
`experiments` and `cli` import from here.
"""

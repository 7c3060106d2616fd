"""Learning curves as plots, and episodes as animations.

`plots` draws learning curves, `replay` writes episodes with the help of `renderers`, and `style`
holds the colours and lines that all of them share. matplotlib and Pillow are imported when the
first picture is drawn; nothing here needs a display or touches matplotlib's global state.

Imports `evaluation`, `environments`, and the rooms below; only `experiments` and `cli` import from
here.
"""

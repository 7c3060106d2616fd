"""The colours of all pictures."""

# Okabe and Ito's palette, https://jfly.uni-koeln.de/color/, which colour-blind readers tell apart,
# without its yellow, which is lost on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT_INK, GRID = "#333333", "#767676", "#E4E4E4"

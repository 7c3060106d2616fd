"""Actor and critic networks, feed-forward and recurrent, and the interface that agents apply.

They import only the vocabulary and `compiler`; `ippo` and the rooms above it may import them.
"""

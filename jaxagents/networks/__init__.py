"""Actor and critic networks, feed-forward and recurrent, and the interface that agents apply.

They import only the top-level modules and `compiler`. `ippo`, `experiments` and `cli` may import
them.
"""

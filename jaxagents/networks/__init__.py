"""Actor and critic networks, feed-forward and recurrent, and the one way an agent applies them.

Imports the vocabulary and `compiler`; `ippo`, and the rooms above it, import from here.
"""

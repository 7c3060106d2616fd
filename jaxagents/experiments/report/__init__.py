"""The HTML report of runs: one page that needs no other file.

`page` writes it with the template of `parts`. Its content is in `sentences` and `content`.
"""

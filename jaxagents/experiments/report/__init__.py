"""The HTML report of runs: one page that needs no other file.

`page` writes it by the template of `parts`. Its content is in `sentences` and `content`.
"""

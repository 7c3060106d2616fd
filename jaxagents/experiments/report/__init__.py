"""The HTML report of runs: one page that needs no other file.

`page` writes it. Its parts are `headline` (summary and key figures), `figures` (curves and
episodes), `result_tables` and `config_section`; `formatting` writes numbers, `markup` HTML.

It imports as `experiments` does; only `cli` imports from here.
"""

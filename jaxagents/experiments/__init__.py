"""Runs: configuration files, the directory of a run, provenance, export, profile and report.

Imports every other package but `cli`; only `cli` imports from here.
"""

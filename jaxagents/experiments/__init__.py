"""Runs: configuration files, the directory of a run, provenance, export, profile and report.

Imports every room below; only `cli` imports from here.
"""

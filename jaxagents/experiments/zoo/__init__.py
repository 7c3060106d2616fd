"""The zoo: trained policies that the repository ships.

An entry is a run's directory made small: configuration, final policy and card.
"""

"""What proves Crosscut itself: the explorer, drawn flows and their worlds, fuzzers, mutants.

It is no part of the installed package: all of it runs from the repository.
"""

"""Runs Tessera and its peers in turns and writes the results.

`bench/run` is the entry point. Uses only the standard library.
"""

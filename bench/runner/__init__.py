"""Runs Tessera and its peers side by side, in turns, and writes what it saw.

`bench/run` is the entry point. Standard library only.
"""

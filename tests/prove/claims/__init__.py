"""The claims of the README, checked from outside: only the programs' output files are compared."""

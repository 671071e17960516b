"""The claims of the README, checked from outside: what programs write is compared, nothing else."""

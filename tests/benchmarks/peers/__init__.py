"""Others beside us, doing the same in turns: `python -m tests.benchmarks --peers --peers-home DIR`."""

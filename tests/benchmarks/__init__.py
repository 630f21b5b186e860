"""What things cost, as medians beside the floor of the same run: `python -m tests.benchmarks`."""

"""Speed and memory beside peers, measured in the same run: `python -m benchmarks`."""

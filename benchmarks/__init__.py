"""Speed: our engine against a plain loop on the same work, in one process tree. See docs/benchmarks.md."""

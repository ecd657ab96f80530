"""Benchmarks of waltz_ray and of what a user would otherwise install: ``waltz bench``."""

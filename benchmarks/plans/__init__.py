"""What plans cost and how fast they are answered; `python -m benchmarks.plans` runs all of it."""

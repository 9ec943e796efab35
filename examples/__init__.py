"""Programs around the library, run from a checkout: `python -m examples.<name>`."""

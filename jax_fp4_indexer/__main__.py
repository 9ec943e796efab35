"""`python -m jax_fp4_indexer demo | doctor | bench`: the command line where its script is not on PATH."""
from .cli import main

if __name__ == "__main__":
    main(prog_name="python -m jax_fp4_indexer")

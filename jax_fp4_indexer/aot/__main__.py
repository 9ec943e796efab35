from .cli import main

if __name__ == "__main__":
    main(prog_name="python -m jax_fp4_indexer.aot")

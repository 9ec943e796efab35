import importlib.util
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("click") is None:
        print(
            "jax_fp4_indexer.aot: this command needs click, which this Python does not have; install the extra: "
            'pip install "jax-fp4-indexer[cli]"',
            file=sys.stderr,
        )
        sys.exit(2)
    from .cli import main

    main(prog_name="python -m jax_fp4_indexer.aot")

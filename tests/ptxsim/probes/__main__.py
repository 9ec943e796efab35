import argparse
import pathlib
import sys

import numpy as np

from . import card, here, instructions, numbers, protocol

GROUPS = 256  # of random operands on a card
KEPT = 32  # of them in h200.npz: the first are the same for any number
RECORD = pathlib.Path(__file__).with_name("h200.npz")


def launches(raw=False, groups=KEPT):
    """All launches. `raw`: with the 64 bits of mbarriers, which only a card has."""
    return [
        *protocol.addresses(),
        *protocol.lanes_store(),
        *protocol.lanes_load(raw),
        *protocol.states(raw),
        *instructions.tables(),
        *instructions.elected(),
        *numbers.product_swizzle(False),
        *numbers.product_swizzle(True),
        *numbers.rounding(groups),
        *numbers.tensor_swizzle(),
    ]


def on_card(path):
    found = card.run_all(launches(raw=True, groups=GROUPS))
    np.savez_compressed(path, **{name: x if isinstance(x, np.ndarray) else np.array(x) for name, x in found.items()})
    faults = {name: x for name, x in found.items() if isinstance(x, str)}
    print(f"{len(found)} launches, {len(faults)} without an answer: {faults}")


def keep(path):
    """Writes RECORD from the file of a run on a card."""
    given = np.load(path)
    np.savez_compressed(
        RECORD,
        **{
            x.name: given[x.name][: x.words] if given[x.name].dtype.kind != "U" else given[x.name]
            for x in launches(raw=True)
        },
    )


def compare(path):
    given, differing = np.load(path), 0
    for x in launches():
        theirs, (ours, result) = given[x.name], here.run_one(x)
        if theirs.dtype.kind == "U" or isinstance(ours, str):
            print(
                f"{x.name}: card {theirs if theirs.dtype.kind == 'U' else 'answers'}; simulator: {ours.splitlines()[0] if isinstance(ours, str) else 'answers'}"
            )
            continue
        written = ours != x.fill  # what only a card tells is left out here
        differ = int((theirs[: x.words] != ours)[written].sum())
        differing += differ > 0
        print(
            f"{x.name}: {differ} of {int(written.sum())} words differ"
            + (f"; {result.faults[0]}" if result.faults else "")
        )
    return differing > 0


def main(argv):
    parser = argparse.ArgumentParser(
        prog="ptxsim.probes",
        description=sys.modules[__package__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["card", "keep", "compare", "one"])
    parser.add_argument("name", help="file; or the one launch whose words go to stdout")
    args = parser.parse_args(argv)
    if args.what == "one":
        sys.stdout.buffer.write(
            card.Card().run(next(x for x in launches(raw=True, groups=1) if x.name == args.name)).tobytes()
        )
        return 0
    return {"card": on_card, "keep": keep, "compare": compare}[args.what](args.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

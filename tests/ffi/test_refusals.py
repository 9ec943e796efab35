"""What the handler refuses of a call, for every op of specs.OPS: one table, made from the specs."""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_fp4_indexer.specs import OPS
from jax_fp4_indexer.specs.spec import Choice, solve

TARGETS = {op.name: f"jax_fp4_indexer_refusals.{op.name}" for op in OPS.values()}
SCRATCH = 48  # bytes that the variants of this file's manifest need


def _manifest():
    """One kernel with every buffer and scalar for each op, which serves all its choices."""
    kernels, variants = [], []
    for op in OPS.values():
        params = [{"buffer": b.name} for b in op.buffers] + [{"i32": name} for name in op.scalars]
        kernels.append(
            {
                "name": op.name,
                "arch": "sm_80",
                "cubin": f"sm_80/{op.name}.cubin",
                "symbol": op.name,
                "block": [128, 1, 1],
                "cluster": [1, 1, 1],
                "grid": {"per_sm": 1},
                "dynamic_shared_bytes": 0,
                "params": params,
            }
        )
        for values in itertools.product(*(op.choices()[key] for key in op.select)):
            variants.append(
                {
                    "op": op.name,
                    "select": dict(zip(op.select, values)),
                    "implementation": "portable",
                    "arch": "sm_80",
                    "bound": 0,
                    "repeat": False,
                    "scratch": str(SCRATCH if op.scratch else 0),
                    "launches": [op.name],
                }
            )
    return {
        "schema": 2,
        "fingerprint": "",
        "dsl": "",
        "ops": [op.to_json() for op in OPS.values()],
        "kernels": kernels,
        "variants": variants,
    }


@pytest.fixture(scope="session")
def driver(serve):
    return serve("refusals", _manifest(), TARGETS.values())


@pytest.fixture
def fake(driver):
    driver.device(0, (8, 0))
    driver.fail("", 0)
    driver.param_sizes([])
    driver.forget_launches()
    return driver


class Call:
    """A call of `op` that is right; tests change one thing of it."""

    def __init__(self, op, choices):
        self.op, self.sizes = op, _sizes(op, choices)
        integers = {a.name: np.int64(max(a.low, min(a.high, 1))) for a in op.attributes if not isinstance(a, Choice)}
        self.attributes = {"op": op.name, "implementation": "auto", **choices, **integers}
        self.operands = {
            name: jnp.zeros(shape, dtype) for name, (dtype, shape) in op.operand_types(choices, self.sizes).items()
        }
        results = {**op.result_types(choices, self.sizes), **({"scratch": ("uint8", (SCRATCH,))} if op.scratch else {})}
        self.results = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (dtype, shape) in results.items()}

    def run(self):
        call = jax.ffi.ffi_call(TARGETS[self.op.name], tuple(self.results.values()))
        jax.block_until_ready(jax.jit(lambda *x: call(*x, **self.attributes))(*self.operands.values()))

    def refused(self, fake, argument):
        """The message, which has to be about `argument` and of the library's grammar."""
        with pytest.raises(jax.errors.JaxRuntimeError) as e:
            self.run()
        text = str(e.value).split("\n")[0]
        who = (
            "jax_fp4_indexer"
            if argument in ("op", "implementation") and self.attributes.get(argument) is None
            else self.op.api
        )
        assert f"INVALID_ARGUMENT: {who}: {argument}: got " in text, text
        assert ", expected " in text and "; " in text.partition(", expected ")[2], text
        assert fake.launches() == []
        return text


@functools.lru_cache(maxsize=None)
def _sizes_of(op, choices):
    """A value for every size, larger than 1 if the conditions allow it."""
    rng, names = random.Random(0), sorted(op.size_names() - {name for name, _ in op.derived})
    for among in (range(2, 9), (1, *range(2, 9), 128, 256)):  # small sizes if they meet the conditions
        for _ in range(10000):
            values = {name: rng.choice(among) for name in names} | op.fixed(dict(choices))
            if all(c.zero.value(values) == 0 for c in op.conditions):
                return values
    raise AssertionError(f"{op.name}: no sizes meet {op.conditions}")


def _sizes(op, choices):
    return dict(_sizes_of(op, tuple(choices.items())))


def _choices(op):
    """The first and the last value of every choice."""
    return [{name: values[end] for name, values in op.choices().items()} for end in (0, -1)]


CALLS = [
    pytest.param(op, choices, id=f"{op.name}-{'-'.join(choices.values())}")
    for op in OPS.values()
    for choices in _choices(op)
]


@pytest.mark.parametrize("op, choices", CALLS)
def test_the_call_itself_is_right(fake, op, choices):
    Call(op, choices).run()
    assert [symbol for symbol, *_ in fake.launches()] == [op.name]


# ---- attributes
def _attribute_rows():
    for op in OPS.values():
        for a in op.attributes:
            wrong = (
                ["none of them", np.int64(0)]
                if isinstance(a, Choice)
                else [np.int64(a.low - 1), np.int64(a.high + 1), "text"]
            )
            for value in [*wrong, None]:
                yield pytest.param(op, a.name, value, id=f"{op.name}-{a.name}-{value}")
        for name, value in (
            ("another", "x"),
            ("more", np.int64(1)),
            ("op", None),
            ("op", "no_such_op"),
            ("implementation", None),
            ("implementation", "reference"),
            ("implementation", np.int64(0)),
        ):
            yield pytest.param(op, name, value, id=f"{op.name}-{name}-{value}")


@pytest.mark.parametrize("op, name, value", list(_attribute_rows()))
def test_attributes_are_refused_at_compile_time(fake, op, name, value):
    """value: in place of the right one, or of none; None: the attribute is missing."""
    call = Call(op, _choices(op)[0])
    call.attributes[name] = value
    if value is None:
        del call.attributes[name]
    types = tuple(call.results.values())
    lowered = jax.jit(lambda *x: jax.ffi.ffi_call(TARGETS[op.name], types)(*x, **call.attributes)).lower(
        *call.operands.values()
    )
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        lowered.compile()
    text = str(e.value)
    who = "jax_fp4_indexer" if name == "op" or name == "implementation" and value != "reference" else op.api
    assert f"INVALID_ARGUMENT: {who}: {name}: got " in text and ", expected " in text and "; " in text, text


def test_an_attribute_of_another_type_is_refused(fake):
    op = next(iter(OPS.values()))
    call = Call(op, _choices(op)[0])
    call.attributes["extra"] = np.float32(1)
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match="jax_fp4_indexer: extra: got an attribute of another type, expected a string or a 64-bit integer",
    ):
        call.run()


# ---- buffers
@pytest.mark.parametrize("op, choices", CALLS)
def test_every_dtype_and_rank_is_checked(fake, op, choices):
    for name in Call(op, choices).operands:
        for change in (lambda x: x.astype(jnp.int16), lambda x: x[None]):
            call = Call(op, choices)
            call.operands[name] = change(call.operands[name])
            call.refused(fake, name)
    for name in Call(op, choices).results:
        for change in (
            lambda t: jax.ShapeDtypeStruct(t.shape, jnp.int16),
            lambda t: jax.ShapeDtypeStruct((1, *t.shape), t.dtype),
        ):
            call = Call(op, choices)
            call.results[name] = change(call.results[name])
            call.refused(fake, name)


def _changed(op, choices):
    """(buffer, axis) of every dimension whose value other dimensions or attributes decide."""
    known = {name for name, _ in op.derived}
    for b in op.operands + op.results:
        for axis, dim in enumerate(b.shape_of(choices)):
            given = solve(dim, 0)
            if given is not None and given[0] not in known:
                known.add(given[0])
            else:
                yield b.name, axis


@pytest.mark.parametrize("op, choices", CALLS)
def test_every_dimension_is_checked(fake, op, choices):
    rows = list(_changed(op, choices))
    assert rows
    for name, axis in rows:
        call = Call(op, choices)
        of = call.operands if name in call.operands else call.results
        shape = [n + (i == axis) for i, n in enumerate(of[name].shape)]
        of[name] = (
            jnp.zeros(shape, of[name].dtype) if of is call.operands else jax.ShapeDtypeStruct(shape, of[name].dtype)
        )
        text = call.refused(fake, name)
        dims = ",".join(map(str, shape))
        assert f"got {of[name].dtype}[{dims}], expected {of[name].dtype}[" in text


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_number_of_buffers_is_checked(fake, op):
    few, many, results = (Call(op, _choices(op)[0]) for _ in range(3))
    few.operands.popitem()
    few.refused(fake, "operands")
    many.operands["another"] = jnp.zeros(3)
    many.refused(fake, "operands")
    results.results["another"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    results.refused(fake, "results")


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.scratch], ids=lambda op: op.name)
def test_too_little_scratch_is_refused(fake, op):
    call = Call(op, _choices(op)[0])
    call.results["scratch"] = jax.ShapeDtypeStruct((SCRATCH - 1,), jnp.uint8)
    assert f"got {SCRATCH - 1} bytes, expected {SCRATCH} bytes" in call.refused(fake, "scratch")


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_an_empty_result_launches_nothing(fake, op):
    """Of a call with a size of 0 that its results have and no condition reads."""
    choices = _choices(op)[0]
    read = frozenset().union(*(c.zero.names() for c in op.conditions), {name for name, _ in op.derived})
    names = [d.args[0] for b in op.results for d in b.shape_of(choices) if d.op == "size" and d.args[0] not in read]
    assert names
    for name in names:
        call = Call(op, choices)
        sizes = {**call.sizes, name: 0}
        call.operands = {n: jnp.zeros(shape, dtype) for n, (dtype, shape) in op.operand_types(choices, sizes).items()}
        for n, (dtype, shape) in op.result_types(choices, sizes).items():
            call.results[n] = jax.ShapeDtypeStruct(shape, dtype)
        call.run()
        assert fake.launches() == []

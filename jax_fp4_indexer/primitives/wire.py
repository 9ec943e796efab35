"""The attributes of a custom call: with the types that the handler reads, and from the text that XLA keeps them in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..specs import OpSpec
from ..specs.spec import Choice


def attributes(spec: OpSpec, values: Mapping[str, Any], implementation: str) -> dict[str, Any]:
    """The attributes of a call of `spec`: str and int64, whatever the types in `values` are."""
    named = {
        a.name: str(values[a.name]) if isinstance(a, Choice) else np.int64(values[a.name]) for a in spec.attributes
    }
    return {"op": spec.name, **named, "implementation": implementation}


def parse(config: str | bytes) -> dict[str, Any]:
    """The attributes of a call from XLA's text of them: `{format = "nvfp4", mask = 1 : i64, ...}`."""
    text = config.decode() if isinstance(config, bytes) else config
    found = re.findall(r'(\w+) = (?:"([^"]*)"|(-?\d+) : i64)', text)
    return {name: np.int64(number) if number else word for name, word, number in found}

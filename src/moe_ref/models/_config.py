"""The values of a config.json, asked for by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moe_ref.models._errors import CheckpointError
from moe_ref.spec._experts import Activation

# Names of transformers 5.24.0, activations.py. `gelu_new` is the tanh form written out.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}


# No model has a size beyond this; a wrong file may, and would be counted through.
_LARGEST = 2**24


class Config:
    """A configuration whose answers are checked.

    Args:
        values: content of config.json, or of a table inside it.
        where: what error messages call it.
    """

    def __init__(self, values: Any, *, where: str = "config.json"):
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where}: must hold a JSON object; got {values!r}.")
        self.where = where
        self._values = values

    @classmethod
    def read(cls, folder: Path) -> "Config":
        """The config.json of `folder`."""
        path = folder / "config.json"
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")), where=str(path))
        except OSError as error:
            raise CheckpointError(f"{path}: must be a readable file; {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path}: must hold JSON; {error}.") from None

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def table(self, name: str) -> "Config":
        """The nested object called `name`."""
        return Config(self._values.get(name, {}), where=f"{self.where}, {name}")

    def integer(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """The value of the first of `names` that is given."""
        value = next((self._values[name] for name in names if name in self), default)
        if type(value) is not int or not minimum <= value <= _LARGEST:
            self._refuse(names[0], f"an integer in [{minimum}, {_LARGEST}]", value)
        return value

    def number(self, name: str, default: float) -> float:
        """A float; integers count."""
        value = default if name not in self else self._values[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse(name, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = default if name not in self else self._values[name]
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it stands; `default` also for null."""
        return default if name not in self else self._values[name]

    def raw(self, name: str, default: Any) -> Any:
        """The value as it stands, null included; `default` only where the key is missing."""
        return self._values.get(name, default)

    def array(self, name: str, kind: type) -> list | None:
        """A list whose entries are of type `kind`, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            self._refuse(name, f"a list of {kind.__name__}", value)
        return value

    def activation(self, name: str, default: str = "silu") -> Activation:
        """The activation called so by transformers."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            self._refuse(name, f"a known activation ({', '.join(ACTIVATIONS)})", value)
        return ACTIVATIONS[value]

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse a setting that would change the computation in a way no spec describes."""
        value = self.get(name)
        if value is not None and value not in allowed:
            self._refuse(name, " or ".join(repr(each) for each in allowed), value)

    def _refuse(self, name: str, requirement: str, value: Any):
        raise CheckpointError(
            f"{self.where}: `{name}` must be {requirement}; got {repr(value)[:200]}."
        )

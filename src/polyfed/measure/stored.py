"""What the JSON files of a run hold, by type; a file that holds anything else is refused in a sentence."""

import json
import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from polyfed.errors import DataError
from polyfed.files import Place

LARGEST = 10**18


def _numbers(value: Any) -> Any:
    """Numbers by name, or names with numbers below them."""
    if isinstance(value, dict):
        for inside in value.values():
            _numbers(inside)
    elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{value!r:.80} is not a number")
    elif value is not None and not abs(value) < math.inf:
        raise ValueError("a number is not finite")
    elif value is not None and abs(value) > LARGEST:
        raise ValueError("a number is larger than any that was measured")
    return value


def _flat(value: Any) -> Any:
    """Numbers by name, with nothing below them."""
    for inside in (value or {}).values():
        if isinstance(inside, dict):
            raise ValueError(f"{inside!r:.80} is not a number")
    return _numbers(value)


Numbers = Annotated[dict[str, Any] | None, AfterValidator(_flat)]
Tree = Annotated[dict[str, Any] | None, AfterValidator(_numbers)]


class Stored(BaseModel):
    """A file's content; what is not named here may be there too."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class Traffic(Stored):
    """Bytes of training."""

    up: int
    down: int


class Tested(Stored):
    """Samples of the global test set: all, those GA was measured on before the last round, and those of PA_cls."""

    global_: int = Field(alias="global")
    global_between: int = 0  # 0: not measured, or written by an earlier version, which took all
    personal_classes: int


class Seconds(Stored):
    """Seconds of a run."""

    total: float


class PhaseOne(Stored):
    """The run whose rounds are another's too, and what they had spent."""

    run: str
    seconds: Seconds
    bytes: Traffic


class Privacy(Stored):
    """What a run's privacy is worth: a guarantee with its epsilon, or a nominal level, which is none."""

    kind: str
    outside: list[str]
    nominal: float | None = None
    epsilon: float = 0.0
    epsilon_mean: float = 0.0
    delta: float = 0.0
    neighbours: str = ""
    accountant: str = ""
    noise: str = ""


class Summary(Stored):
    """summary.json: every number of a finished run."""

    fingerprint: str
    method: str
    seed: int
    bytes: Traffic
    seconds: Seconds
    phase_one: PhaseOne | None = None
    tested: Tested | None = None
    global_: Numbers = Field(None, alias="global")
    personal: Numbers = None
    personal_before: Numbers = None
    personal_selected: Numbers = None
    personal_classes: Tree = None
    global_local: Numbers = None
    heldout: Numbers = None
    validated: Tree = None
    validation: Numbers = None
    oracle: Tree = None
    personal_unfinished: Numbers = None
    unfinished: list[int] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    privacy: Privacy | None = None  # None: nothing was asked for
    keeps: dict[str, str] | None = None  # None: written by an earlier version


class Holding(Stored):
    """What one client told of itself."""

    id: int
    name: str
    train: int
    counts: list[int] | None = None


class Federation(Stored):
    """federation.json: who takes part and holds what."""

    class_names: list[str]
    heldout: list[int]
    clients: list[Holding]


class Environment(Stored):
    """environment.json: what the bits may depend on."""

    command: list[str] = Field(default_factory=list)


def read_json(file: Place, kind: type[Stored]) -> dict[str, Any] | None:
    """What a file of a run holds, checked; None where there is no file."""
    corrupt = f"the run at '{file.path.parent}' is corrupt: {file.name}"
    try:
        found = json.loads(file.read_text())
        kind.model_validate(found)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{corrupt} is not what was written: {f'{where}: ' if where else ''}{first['msg']}") from None
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise DataError(f"{corrupt}: {error}") from None
    return found

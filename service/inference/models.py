"""The models being served, each under its name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from service.errors import UnknownModel
from service.inference.engine import Engine


@dataclass(frozen=True)
class ServedModel:
    """One revision of a model, and the engine that runs it."""

    model: EulerLoRA
    engine: Engine

    @classmethod
    def of(cls, model: EulerLoRA) -> Self:
        """The model with an engine of its own."""
        return cls(model, Engine(model))

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.model.config.name

    @property
    def revision(self) -> str:
        """The digest of its checkpoint."""
        return self.model.revision


class ServedModels(Mapping[str, ServedModel]):
    """The served models by name; the first is the default."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        found: dict[str, ServedModel] = {}
        for each in models:
            if each.name in found:
                raise SettingsError(f"two checkpoints have the name {each.name}; give each its own")
            found[each.name] = each
        self._models = found

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> str:
        """The name of the model that answers where none is asked for."""
        return next(iter(self._models))

    def named(self, name: str | None) -> ServedModel:
        """The model of that name, or the default. Raises UnknownModel."""
        with suppress(KeyError):
            return self._models[self.default if name is None else name]
        raise UnknownModel(f"served are: {', '.join(self._models)}")

    def replace(self, served: ServedModel) -> None:
        """Serves another revision under a name that is served already, from the next question on.

        Who holds the old one keeps it. Raises SettingsError for a name that is not served.
        """
        if served.name not in self._models:
            raise SettingsError(f"no model of the name {served.name} is served")
        self._models = {**self._models, served.name: served}  # a reader sees the old or the new

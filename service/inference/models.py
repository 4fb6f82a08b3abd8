"""The served models by name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from eulerlora_client.contract.problems import UnknownModel
from service.inference.engine import Engine


@dataclass(frozen=True)
class ServedModel:
    """One revision of a model and its engine.

    card: in Markdown, empty if there is none. source: the repository at the served commit, None for
    a folder.
    """

    model: EulerLoRA
    engine: Engine
    card: str = ""
    source: str | None = None

    @classmethod
    def of(cls, model: EulerLoRA, card: str = "", source: str | None = None) -> Self:
        """Returns the model with a new engine."""
        return cls(model, Engine(model), card, source)

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.model.config.name

    @property
    def revision(self) -> str:
        """The digest of its checkpoint."""
        return self.model.revision


class ServedModels(Mapping[str, ServedModel]):
    """The served models by name; the first is the default.

    Raises SettingsError if two models have the same name.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        by_name: dict[str, ServedModel] = {}
        for model in models:
            if model.name in by_name:
                raise SettingsError(f"expected distinct model names, got {model.name} twice")
            by_name[model.name] = model
        self._models = by_name

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> str:
        """The name of the model for requests that name none."""
        return next(iter(self._models))

    def named(self, name: str | None) -> ServedModel:
        """Returns the model of that name, or the default for None. Raises UnknownModel."""
        with suppress(KeyError):
            return self._models[self.default if name is None else name]
        raise UnknownModel(f"the served models are: {', '.join(self._models)}")

    def replace(self, served: ServedModel) -> None:
        """Serves another revision of a model; requests that hold the old one keep it.

        Raises SettingsError for a name that is not served.
        """
        if served.name not in self._models:
            raise SettingsError(f"no model named {served.name} is served")
        self._models = {**self._models, served.name: served}  # atomic for concurrent readers

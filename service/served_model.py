"""A model being served: its engine, the thread that runs it, and what clients may know of it."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from torch import Tensor

from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from service.batcher import Answered, Batcher
from service.engine import Engine, Question
from service.errors import NotReady, UnknownModel


class ServedModel:
    """One checkpoint behind a batcher of its own.

    max_batch_rows: rows of one forward pass.
    """

    def __init__(self, model: EulerLoRA, max_batch_rows: int) -> None:
        self.model = model
        self.engine = Engine(model)
        self._batcher = Batcher(self.engine.answer, self.engine.rows, max_batch_rows)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Warms the model up and serves it; on the way out, what was accepted is answered."""
        self.engine.warm_up()
        self._batcher.start()
        try:
            yield
        finally:
            self._batcher.close()

    async def answer(self, question: Question) -> Answered[Tensor]:
        """The answer to a question, once its batch has run. Raises NotReady while closing."""
        try:
            future = self._batcher.submit(question)
        except RuntimeError as error:
            raise NotReady("the service is stopping") from error
        return await asyncio.wrap_future(future)


class ServedModels(Mapping[str, ServedModel]):
    """The served models by name; the first is the default."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models: dict[str, ServedModel] = {}
        for each in models:
            name = each.model.config.name
            if name in self._models:
                raise SettingsError(f"two checkpoints have the name {name}; give each its own")
            self._models[name] = each

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
        name = served.model.config.name
        if name not in self._models:
            raise SettingsError(f"no model of the name {name} is served")
        self._models = {**self._models, name: served}  # a reader sees the old or the new

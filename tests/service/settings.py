"""The settings of the service, by the names that their variables have."""

from typing import Any

from service.settings import ServiceSettings


def settings_of(group: str, **values: object) -> Any:
    """A group of the settings with these values, such as `settings_of("images", min_side=8)`."""
    return getattr(ServiceSettings.model_validate({group: values}), group)

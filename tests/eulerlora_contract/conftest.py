"""The picture of the service's tests."""

from tests.service.conftest import photo  # noqa: F401 - a fixture

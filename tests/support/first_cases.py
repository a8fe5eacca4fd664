"""A pytest plugin for slow machines: of a test with parameters, only the first case runs."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of every test function; the others are counted as deselected."""
    first: dict[tuple[str, str], pytest.Item] = {}
    for item in items:
        first.setdefault((str(item.path), getattr(item, "originalname", item.name)), item)
    kept = set(map(id, first.values()))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = first.values()

"""The contract of a provider as test classes, shipped with the package so that third parties run the same ones.

A provider's test file subclasses `kit.ProviderContract` and overrides one fixture, `provider`. What a provider may
skip follows from the capabilities it declares, never from a list of test names.
"""

import pkgutil

import pytest

__all__: list[str] = []

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

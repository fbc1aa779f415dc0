"""torch and transformers, imported by the first test that uses them: few workers run such tests."""

from importlib import import_module


class _Lazy:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # pytest looks for marks
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


safetensors, torch, transformers = map(_Lazy, ("safetensors.torch", "torch", "transformers"))

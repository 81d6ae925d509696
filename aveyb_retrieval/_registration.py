"""Makes transformers know our models as soon as transformers is imported, without importing it
ourselves.

`import aveyb_retrieval` must stay cheap, yet after it `AutoModel` and `SentenceTransformer(folder)`
must load an Avey-B folder with no further flag. So registration waits: where transformers' auto
classes are already loaded it happens at once, otherwise right after the module that holds them has
run.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_AUTO = "transformers.models.auto."


def _register_config() -> None:
    from transformers import AutoConfig

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.family.config import AveyConfig, FunnelAveyBConfig

    AutoConfig.register(AveyBConfig.model_type, AveyBConfig, exist_ok=True)
    AutoConfig.register(AveyConfig.model_type, AveyConfig, exist_ok=True)
    AutoConfig.register(FunnelAveyBConfig.model_type, FunnelAveyBConfig, exist_ok=True)


def _register_models() -> None:
    import transformers

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.network import heads, model
    from aveyb_retrieval.family.answers import AveyBForQuestionAnswering
    from aveyb_retrieval.family.avey import AveyForCausalLM
    from aveyb_retrieval.family.config import AveyConfig, FunnelAveyBConfig
    from aveyb_retrieval.family.funnel import FunnelAveyBModel

    transformers.AutoModel.register(AveyBConfig, model.AveyBModel, exist_ok=True)
    transformers.AutoModelForMaskedLM.register(AveyBConfig, model.AveyBForMaskedLM, exist_ok=True)
    classify, tag = heads.AveyBForSequenceClassification, heads.AveyBForTokenClassification
    transformers.AutoModelForSequenceClassification.register(AveyBConfig, classify, exist_ok=True)
    transformers.AutoModelForTokenClassification.register(AveyBConfig, tag, exist_ok=True)
    answer = AveyBForQuestionAnswering
    transformers.AutoModelForQuestionAnswering.register(AveyBConfig, answer, exist_ok=True)
    transformers.AutoModel.register(FunnelAveyBConfig, FunnelAveyBModel, exist_ok=True)
    transformers.AutoModelForCausalLM.register(AveyConfig, AveyForCausalLM, exist_ok=True)


_PENDING: dict[str, Callable[[], None]] = {
    _AUTO + "configuration_auto": _register_config,
    _AUTO + "modeling_auto": _register_models,
}


class _AfterImport(MetaPathFinder):
    """Finds the two modules as usual and runs the registration once each has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        register = _PENDING.get(fullname)
        spec = PathFinder.find_spec(fullname, path) if register else None
        if register is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Registers the model type with transformers: now where it is loaded, else when it will be."""
    for name, register in _PENDING.items():
        if name in sys.modules:
            register()
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())

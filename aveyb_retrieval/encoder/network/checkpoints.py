"""Load checkpoints in this package's format and in the authors', and refuse those that do not fill
a model.

transformers starts parameters that a checkpoint lacks at random and goes on. Here that is an error
for every model class, except for a head of which a checkpoint of the encoder holds nothing.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers.utils import cached_file

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model_folders import TABLE, is_released, read_object
from aveyb_retrieval.encoder.network.tensors import (
    check_complete,
    check_shapes,
    float_table,
    no_weights,
    released_tensors,
)
from aveyb_retrieval.encoder.settings import check_model_type, released_fields
from aveyb_retrieval.errors import ModelError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

_WITHOUT_HEAD = ("", "AveyBModel", "AveyBForMaskedLM")  # classes whose folders hold no other head
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class CheckpointLoading:
    """Mixed into the models: a strict `from_pretrained`, and `from_released` for the authors'
    tensors.
    """

    head_names: tuple[str, ...] = ()  # submodules of a head that no other class has
    config_class: type[AveyBConfig]

    @classmethod
    def from_released(
        cls,
        state_dict: Mapping[str, torch.Tensor],
        *,
        num_labels: int | None = None,
        **settings: Any,
    ) -> Self:
        """Build the model, in evaluation mode, from the tensors and settings of a released
        checkpoint.

        Args:
            state_dict: the checkpoint's tensors, with or without a prefix before those of the
                encoder; a tied head is ignored.
            num_labels: outputs of the classifier, where the model has one.
            **settings: the fields of the checkpoint's `config.json` that the configuration's
            `from_released` takes.

        Raises:
            ConfigError: the settings contradict each other.
            ModelError: a tensor is missing, left over, or of another shape than the settings say.
        """
        config = AveyBConfig.from_released(**settings)
        if num_labels is not None:
            config.num_labels = num_labels
        tensors = cls._of_released(state_dict)
        options = {"config": config, "state_dict": tensors, "dtype": torch.float32}
        return cast("Self", cls._checked("released checkpoint", None, (), options))

    @classmethod
    def _of_released(cls, state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return released_tensors(state_dict) | {
            n: t for n, t in state_dict.items() if n.startswith(cls.head_names)
        }

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Load a model whose every parameter is in the checkpoint, from safetensors only.

        Takes what transformers' `from_pretrained` takes. A folder or hub name in the authors'
        format loads, too. The masked-language head is tied to the embedding, so that a checkpoint
        of the encoder alone fills `AveyBForMaskedLM`. Under any other head it gets a new one, at
        random, of which transformers warns as for every model; `num_labels=` gives its size.

        Raises:
            ModelError: there is no Avey-B configuration (a BERT or ModernBERT folder, say) or no
                `model.safetensors`, the file is damaged, or it lacks parameters, has encoder
                parameters left over or of other shapes than the configuration says (another
                vocabulary, say).
        """
        name = pretrained_model_name_or_path
        hub = _hub_options(kwargs)
        settings = (
            {}
            if name is None
            else read_settings(
                name, hub, needed=kwargs.get("config") is None, kind=cls.config_class.model_type
            )
        )
        cls._check_kind(name, settings)
        try:
            if is_released(settings):
                return cast("Self", cls._from_released_folder(name, settings, args, kwargs))
            return cast("Self", cls._from_own_format(name, args, kwargs))
        except SafetensorError as error:
            raise ModelError(
                f"{name}: its safetensors file is damaged or cut short ({error}); copy or download"
                " it again"
            ) from error
        except OSError as error:
            raise no_weights(name, first_line(error).rstrip(".")) from error

    @classmethod
    def _check_kind(cls, name: Any, settings: dict[str, Any]) -> None:
        saved_as = next(iter(settings.get("architectures") or [""]))
        is_other_head = saved_as.startswith("AveyB") and saved_as not in _WITHOUT_HEAD
        if cls.head_names and is_other_head and saved_as != cls.__name__:
            raise ModelError(
                f"{name}: saved as {saved_as}, opened as {cls.__name__}, which has another head;"
                f" open it as {saved_as}, or put a new head on its encoder with"
                f" {cls.__name__}.from_encoder"
            )

    @classmethod
    def _from_own_format(cls, name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weights = _find_weights(name, kwargs) if kwargs.get("state_dict") is None else None
        if weights is None or not _has_int8_table(weights):
            return cls._checked(name, name, args, kwargs)
        if kwargs.get("config") is None:
            kwargs = cls._with_config(name, kwargs)
        kwargs["state_dict"] = float_table(load_file(weights), weights)
        return cls._checked(name, None, args, kwargs)

    @classmethod
    def _with_config(cls, name: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `from_pretrained` with a configuration that took its fields out of
        them, as transformers does.
        """
        own = ("config", "dtype", "torch_dtype")  # of the model, not of its configuration
        fields = {option: value for option, value in kwargs.items() if option not in own}
        config, unused = cls.config_class.from_pretrained(name, return_unused_kwargs=True, **fields)
        kept = {option: kwargs[option] for option in own if option in kwargs}
        return {**kept, **unused, "config": config}

    @classmethod
    def _from_released_folder(
        cls, name: Any, settings: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not isinstance(kwargs.get("config"), AveyBConfig):
            fields = released_fields(settings, str(name))
            config = kwargs["config"] = AveyBConfig(**fields)
            stored_labels = len(settings.get("id2label") or ()) or 2
            config.num_labels = kwargs.pop("num_labels", stored_labels)
        weights = _find_weights(name, kwargs)
        if weights is None:
            raise no_weights(name, "no model.safetensors")
        kwargs["state_dict"] = cls._of_released(float_table(load_file(weights), weights))
        kwargs.setdefault("dtype", kwargs.pop("torch_dtype", torch.float32))
        return cls._checked(name, None, args, kwargs)

    @classmethod
    def _checked(cls, name: Any, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Load by transformers, from a source or from tensors (it takes no two), and check that
        they fill the model.
        """
        wants_info, allowed = (
            kwargs.pop("output_loading_info", False),
            kwargs.pop("ignore_mismatched_sizes", False),
        )
        kwargs["use_safetensors"] = True
        with _held_report() as report:
            model, info = super().from_pretrained(  # type: ignore[misc]
                source, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        if not allowed:
            check_shapes(name, info["mismatched_keys"])
        missing, head = set(info["missing_keys"]), cls._head_parameters(model)
        if head and head <= missing:
            missing -= head
            report.show()
        check_complete(name, missing, set(info["unexpected_keys"]))
        return (model, info) if wants_info else model

    @classmethod
    def _head_parameters(cls, model: Any) -> set[str]:
        """Return the names of the parameters of a model's head."""
        return {
            name
            for name in model.state_dict()
            if cls.head_names and name.split(".")[0] in cls.head_names
        }


def _hub_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {option: kwargs[option] for option in _HUB_OPTIONS if kwargs.get(option) is not None}


def _find_weights(name: Any, kwargs: dict[str, Any]) -> str | None:
    """Return the path of a model's checkpoint, if it has one in a single file."""
    if name is None:
        return None
    return cached_file(
        name,
        "model.safetensors",
        _raise_exceptions_for_missing_entries=False,
        **_hub_options(kwargs),
    )


def _has_int8_table(path: str) -> bool:
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.endswith(TABLE)]  # noqa: SIM118
        return any(file.get_slice(name).get_dtype() == "I8" for name in names)


def read_settings(
    name: Any, hub: dict[str, Any], *, needed: bool, kind: str = AveyBConfig.model_type
) -> dict[str, Any]:
    """Return the fields of a `config.json` of our models of a kind (`model_type`), or a released
    one; none if there is none and none is needed.
    """
    path = cached_file(
        name,
        "config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_connection_errors=False,
        **hub,
    )
    if path is None:
        if needed:
            raise ModelError(
                f"{name}: no config.json; name a folder that holds a model, or a model of the hub"
            )
        return {}
    settings = read_object(Path(path))
    check_model_type(settings, Path(path), kind)
    return settings


class _Report:
    """transformers' table of missing and unexpected tensors, held back while a model is loaded."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._records: list[logging.LogRecord] = []

    def hold(self, record: logging.LogRecord) -> bool:
        """Keep a record that is no error; False: it is not logged now."""
        is_error = record.levelno >= logging.ERROR
        if not is_error:
            self._records.append(record)
        return is_error

    def show(self) -> None:
        """Log what was held back."""
        for record in self._records:
            self._logger.handle(record)


@contextmanager
def _held_report() -> Iterator[_Report]:
    """Hold back transformers' report: what matters in it is raised as an error, but for a new head.

    By a filter, not by the logger's level: transformers reports on tensor parallelism where that
    level is set.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    report = _Report(logger)
    logger.addFilter(report.hold)
    try:
        yield report
    finally:
        logger.removeFilter(report.hold)

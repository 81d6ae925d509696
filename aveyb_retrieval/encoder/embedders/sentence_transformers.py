"""Save an Avey-B model as a sentence-transformers folder of stock modules: Transformer, mean
Pooling, Normalize.

`SentenceTransformer(folder)` loads such a folder without `trust_remote_code` once `aveyb_retrieval`
is imported.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from aveyb_retrieval.encoder.model_folders import read_object
from aveyb_retrieval.encoder.text.tokenizer import write_limit
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.network.model import AveyBModel
    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

PROMPTS_FILE = "config_sentence_transformers.json"
MODULES_FILE = "modules.json"
NO_LIMIT_TOKENS = 1 << 30  # of tokens: what is above it means that nothing is cut
NO_PROMPTS = {"query": "", "document": ""}
_MODULES = ("Transformer", "Pooling", "Normalize")


class Module(msgspec.Struct):
    """One of the modules that a text goes through, and its folder."""

    type: str
    path: Annotated[str, msgspec.Meta(pattern=r"^(?!/|.*\.\.)[^\\:]{0,199}$")] = ""


def sentence_transformer(
    model: AveyBModel,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    prompts: dict[str, str] | None = None,
) -> SentenceTransformer:
    """Write `model` and `tokenizer` to `folder` as a sentence-transformers model and return it,
    loaded.

    The encoder is saved in its own dtype, the tokenizer in both of its formats; `prompts`, before
    every "query" and "document", are part of what is pooled (None: empty ones).
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    folder = Path(folder)
    tokenizer.check_embeddings(model.config.vocab_size, str(folder))
    tokenizer.save(folder)
    model.save_pretrained(folder)
    modules = [
        Transformer(str(folder)),
        Pooling(model.config.hidden_size, pooling_mode="mean"),
        Normalize(),
    ]
    sentence_model = SentenceTransformer(
        modules=modules,
        prompts={**NO_PROMPTS, **(prompts or {})},
        similarity_fn_name="cosine",
        device="cpu",
    )
    sentence_model.save(str(folder), create_model_card=False)
    tokenizer.save(folder)  # again: transformers has rewritten tokenizer.json
    return sentence_model


def read_prompts(folder: Path) -> dict[str, str]:
    """Return the "query" and "document" prompts of a sentence-transformers folder; empty where none
    are set.
    """
    path = folder / PROMPTS_FILE
    prompts = read_object(path).get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(prompts.get(name) or "", str) for name in NO_PROMPTS
    ):
        raise ModelError(
            f"{path}: its prompts are not texts by name; copy or download the model again"
        )
    return {name: prompts.get(name) or "" for name in NO_PROMPTS}


def read_limit(folder: Path) -> int | None:
    """Return the number of tokens at which sentence-transformers cuts a text with this folder;
    None: it reads all.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    limit = read_object(folder / "sentence_bert_config.json").get("max_seq_length")
    if limit is None:
        limit = read_object(folder / "tokenizer_config.json").get("model_max_length")
    return (
        limit
        if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < NO_LIMIT_TOKENS
        else None
    )


def identity(folder: Path) -> dict[str, str]:
    """Return what decides an encoder's vectors besides its files, for `folders.fingerprint`:
    prompts, and a limit.
    """
    limit = read_limit(folder)
    return read_prompts(folder) | ({} if limit is None else {"max_seq_length": str(limit)})


def save_again(model: SentenceTransformer, tokenizer: Tokenizer | None, folder: Path) -> None:
    """Save a trained model with our own form of its tokenizer, which sentence-transformers does not
    know.
    """
    from aveyb_retrieval.encoder.progress_bars import without_progress_bars

    with without_progress_bars():
        model.save(str(folder), create_model_card=False)
    if tokenizer is not None:
        tokenizer.save(folder)  # this writes tokenizer_config.json anew, without a limit
        if model.max_seq_length is not None and model.max_seq_length < NO_LIMIT_TOKENS:
            write_limit(folder, int(model.max_seq_length))


def check_modules(folder: Path) -> None:
    """Check that a text's vector is the mean over all of its tokens, and whole; without
    modules.json it is.
    """
    truncated = read_object(folder / PROMPTS_FILE).get("truncate_dim")
    if truncated is not None:
        raise ModelError(
            f"{folder / PROMPTS_FILE}: truncate_dim is {truncated!r}; an Avey-B model gives vectors"
            " of its whole width alone: remove the field, or name a model without it"
        )
    path, advice = (
        folder / MODULES_FILE,
        "an Avey-B model is made of them alone: name one that was trained without it",
    )
    for module in read_modules(folder, _MODULES, advice) if path.is_file() else ():
        if not re.fullmatch("[A-Za-z0-9_.-]{0,99}", module.path):
            raise ModelError(
                f"{path}: damaged (path {module.path!r}); copy or download the model again"
            )
        if module.type.endswith(".Pooling"):
            config = folder / module.path / "config.json"
            said = read_object(config)
            # older versions of sentence-transformers write a field for each mode
            earlier = [
                name.removeprefix("pooling_mode_")
                for name, on in said.items()
                if "pooling_mode_" in name and on
            ]
            modes = said.get("pooling_mode", earlier or "mean")
            if (
                modes not in ("mean", ["mean"], ["mean_tokens"])
                or said.get("include_prompt") is False
            ):
                raise ModelError(
                    f"{config}: pooling_mode is {modes!r}, include_prompt"
                    f" {said.get('include_prompt', True)}; only the mean over all tokens, prompt"
                    " included, gives passages their vectors: name a model that was trained"
                    " with it"
                )


def read_modules(folder: Path, known: Collection[str], advice: str) -> list[Module]:
    """Read the modules of a folder; ModelError, with advice: one is not known, or the folder does
    not say.
    """
    path = folder / MODULES_FILE
    try:
        modules = msgspec.json.decode(path.read_bytes(), type=list[Module])
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: damaged or missing ({error}); copy or download the model again"
        ) from error
    for module in modules:
        if (
            not module.type.startswith("sentence_transformers.")
            or module.type.rpartition(".")[2] not in known
        ):
            raise ModelError(
                f"{path}: a module of type {module.type!r}; known are {', '.join(sorted(known))} of"
                f" sentence-transformers: {advice}"
            )
    return modules

"""The models that are compared: ours in several ways, the authors' code, ModernBERT and BERT; base size.

ModernBERT and BERT run with each attention that may be the fastest at some length, as entries of their own: `sdpa` is
given a mask over all pairs for ModernBERT's local layers, `flex` skips blocks. NeoBERT is part of no transformers
release; it joins where its code does.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, ModernBertConfig

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.kernels.dispatch import force_backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

TOY = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2}


@dataclass
class Entry:
    """One competitor: how to build it, and what its runs are wrapped in.

    build: makes the model (on the CPU, float32); context: entered around every run; note: how it runs; ready: what is
    done once the model is on its device.
    """

    name: str
    build: Callable[[], nn.Module]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: str = ""
    ready: Callable[[Any], None] = lambda model: None


def our_config(preset: str, toy: bool) -> AveyBConfig:
    """The base model of a preset, or a toy of its kind."""
    make = {"paper": AveyBConfig.paper_base, "released": AveyBConfig.released_base}[preset]
    return make(**TOY, split_size=16) if toy else make()


def entries(
    *, masked_lm: bool, preset: str, toy: bool, longest: int, authors: Path | None, on_gpu: bool
) -> dict[str, Entry]:
    """Everything that can run here, by name. Nothing is built yet: what cannot be says so when it is."""
    found = _ours(masked_lm, preset, toy, on_gpu)
    if authors is not None:
        found.append(
            Entry("authors", lambda: _authors(authors, preset, masked_lm, toy), note="its own compile decorators")
        )
    attentions = ["sdpa", *(["flex_attention"] if on_gpu else [])]
    attentions += ["flash_attention_2"] if on_gpu and importlib.util.find_spec("flash_attn") else []
    for name, config in (("ModernBERT-base", _modernbert(toy, longest)), ("BERT-base", _bert(toy, longest))):
        for attention in attentions:
            plain = _transformer(f"{name} {attention.split('_')[0]}", config, attention, masked_lm)
            found.append(plain)
            if on_gpu:
                found.append(Entry(f"{plain.name} compiled", _compiled(plain.build), note="torch.compile"))
    return {entry.name: entry for entry in found}


def chosen_names(found: dict[str, Entry], only: str | None) -> list[str]:
    """The names to run: all, or the comma-separated ones of `only`; "ours" and "peers" stand for groups."""
    if only is None:
        return list(found)
    groups = {
        "all ours": [name for name in found if name.startswith("ours")],
        "peers": [name for name in found if not name.startswith("ours")],
    }
    names = [name for part in only.split(",") for name in groups.get(part.strip(), [part.strip()])]
    if unknown := set(names) - set(found):
        raise SystemExit(f"--only: no {', '.join(sorted(unknown))} in this line-up: {', '.join(found)}")
    return names


def _ours(masked_lm: bool, preset: str, toy: bool, on_gpu: bool) -> list[Entry]:
    """Our model by plain torch and with each of what makes it faster on a GPU; the others are held to "ours"."""

    def make() -> nn.Module:
        return (AveyBForMaskedLM if masked_lm else AveyBModel)(our_config(preset, toy))

    def compiled() -> nn.Module:
        model = make()
        for layer in (model.model if masked_lm else model).layers:
            layer.compile(dynamic=True)
        return model

    def plainly() -> AbstractContextManager[Any]:
        return force_backend("torch")

    chosen = [Entry("ours eager", make, plainly, "torch")]
    if on_gpu:
        chosen += [
            Entry("ours compiled", compiled, plainly, "torch.compile of the layers"),
            Entry("ours kernels", make, note="Triton kernels"),
            Entry("ours all kernels", make, lambda: force_backend("triton"), "enricher and fuser, too"),
        ]
    if on_gpu and not masked_lm:
        graphs = partial(AveyBModel.use_cuda_graphs, max_tokens=16_384)
        chosen.append(Entry("ours graphs", make, note="Triton kernels, CUDA graphs", ready=graphs))
    if not masked_lm:
        chosen.append(Entry("ours float8", make, note="float8", ready=AveyBModel.use_float8))
    if on_gpu:
        chosen.append(Entry("ours", compiled, note="Triton kernels, torch.compile around them"))
    return chosen


def _compiled(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def compiled() -> nn.Module:
        model = build()
        model.compile(dynamic=True)
        return model

    return compiled


def _authors(folder: Path, preset: str, masked_lm: bool, toy: bool) -> nn.Module:
    """The model of the authors' package folder (`configuration_avey.py`, `modeling_avey.py`), brought for the run."""
    sys.path.insert(0, str(folder.parent))
    modeling = importlib.import_module(f"{folder.name}.modeling_avey")
    ours = our_config(preset, toy)
    config = importlib.import_module(f"{folder.name}.configuration_avey").AveyConfig(
        vocab_size=ours.vocab_size,
        d_embed=ours.hidden_size,
        n_layers=ours.num_hidden_layers,
        chunk_size=ours.split_size,
        k=ours.num_retrieved,
    )
    return (modeling.AveyForMaskedLM if masked_lm else modeling.AveyModel)(config)


def _modernbert(toy: bool, longest: int) -> ModernBertConfig:
    small = {"num_attention_heads": 2, "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    more = {**TOY, **small, "cls_token_id": 1, "sep_token_id": 2} if toy else {}
    return ModernBertConfig(max_position_embeddings=longest, **more)


def _bert(toy: bool, longest: int) -> BertConfig:
    more = {**TOY, "num_attention_heads": 2, "intermediate_size": 64} if toy else {}
    return BertConfig(max_position_embeddings=longest, **more)


def _transformer(name: str, config: Any, attention: str, masked_lm: bool) -> Entry:
    auto = AutoModelForMaskedLM if masked_lm else AutoModel
    return Entry(name, lambda: auto.from_config(config, attn_implementation=attention), note=attention)

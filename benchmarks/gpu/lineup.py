"""The models that are compared: ours in four ways, the authors' code, ModernBERT and BERT; base size."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import RUN_ERRORS, Clock
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, ModernBertConfig

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.kernels.dispatch import force_backend

TOY = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2}


@dataclass
class Entry:
    """One competitor: how to build it, and what its runs are wrapped in.

    build: makes the model (on the CPU, float32); context: entered around every run; note: how it runs.
    """

    name: str
    build: Callable[[], nn.Module]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: str = ""


def our_config(preset: str, toy: bool) -> AveyBConfig:
    """The base model of a preset, or a toy of its kind."""
    make = {"paper": AveyBConfig.paper_base, "released": AveyBConfig.released_base}[preset]
    return make(**TOY, split_size=16) if toy else make()


def entries(
    *, masked_lm: bool, preset: str, toy: bool, longest: int, authors: Path | None, clock: Clock
) -> list[Entry]:
    """Everything that can run here. Peers that cannot be built say so when they are."""
    kind = AveyBForMaskedLM if masked_lm else AveyBModel

    def ours(compiled: bool) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            model = kind(our_config(preset, toy))
            layers = (model.model if masked_lm else model).layers
            for layer in layers if compiled else ():
                layer.compile(dynamic=True)
            return model

        return build

    gpu = clock.device.type == "cuda"
    chosen = [Entry("ours eager", ours(False), lambda: force_backend("torch"), "torch")]
    if gpu:
        chosen += [
            Entry("ours compiled", ours(True), lambda: force_backend("torch"), "torch.compile of the layers"),
            Entry("ours kernels", ours(False), nullcontext, "Triton kernels"),
            Entry("ours", ours(True), nullcontext, "Triton kernels, torch.compile around them"),
        ]
    if authors is not None:
        chosen.append(
            Entry("authors", lambda: _authors(authors, preset, masked_lm, toy), note="its own compile decorators")
        )
    for name, config in (("ModernBERT-base", _modernbert(toy, longest)), ("BERT-base", _bert(toy, longest))):
        chosen.append(_transformer(name, config, masked_lm, clock))
    return chosen


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


def _transformer(name: str, config: Any, masked_lm: bool, clock: Clock) -> Entry:
    """A transformer with the fastest attention that works here, tried on one batch of 512 tokens."""
    auto = AutoModelForMaskedLM if masked_lm else AutoModel
    choices = ["sdpa"]
    if clock.device.type == "cuda":
        choices += ["flex_attention"]
        choices += ["flash_attention_2"] if importlib.util.find_spec("flash_attn") else []
    length = min(512, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (8, length), device=clock.device)
    times: dict[str, float] = {}
    failures = []
    for attention in choices:
        try:
            model = auto.from_config(config, attn_implementation=attention).to(clock.device, torch.bfloat16).eval()
            with torch.inference_mode():
                times[attention] = clock.median(lambda m=model: m(input_ids=ids), seconds=0.5)
        except RUN_ERRORS as error:
            failures.append(f"{attention}: {type(error).__name__}")
    if not times:
        raise SystemExit(f"{name} runs with none of {', '.join(failures)}")
    best = min(times, key=lambda k: times[k])
    note = ", ".join([best, *failures])
    return Entry(name, lambda: auto.from_config(config, attn_implementation=best), note=note)

"""The encoder's own work, from token ids to token vectors, without transformers' model classes.

`SplitEncoder` holds it for two classes: `AveyBModel`, which transformers loads, saves and trains,
and `InferenceModel`, which only encodes. The second is for searches: importing transformers' model
classes takes longer than a search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from aveyb_retrieval.encoder.model_folders import is_released, read_object
from aveyb_retrieval.encoder.network.cuda_graphs import CudaGraphs
from aveyb_retrieval.encoder.network.layers import AveyBLayer, fusable, intercepted, run_fused
from aveyb_retrieval.encoder.network.layout import (
    REPLAY_SIZES,
    group_widths,
    replay_places,
    replay_widths,
)
from aveyb_retrieval.encoder.network.ranker import Ranker, Retrieved
from aveyb_retrieval.encoder.network.splits import SplitTable, padded_table, split_table
from aveyb_retrieval.encoder.network.tensors import (
    check_fits,
    encoder_tensors,
    float_table,
    no_weights,
    released_tensors,
)
from aveyb_retrieval.encoder.settings import EncoderSettings, settings_of
from aveyb_retrieval.errors import InputError, ModelError
from aveyb_retrieval.kernels.dispatch import fuses_passes, to_device, use_triton
from aveyb_retrieval.kernels.maxsim import SHORTCUT_SPLITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

    Pieces = Iterator[tuple[torch.Tensor, torch.Tensor]]
    _Module = nn.Module
else:
    _Module = object  # each of the two classes brings its own

# Small groups stay in the CPU cache and reuse allocations: 16,384 tokens at a time took 1.3
# (float32) and 1.2 (bfloat16) times as long as 2,048.
_CPU_GROUP_TOKENS = 2048
_REPLAYS = ("cuda",)  # kinds of devices on which inference is replays


class SplitEncoder(_Module):
    """Token ids to token vectors: the ranker on documents, the layers on splits, in groups of
    similar length.
    """

    config: Any  # an AveyBConfig, or the settings alone
    device: torch.device
    _gradient_checkpointing_func: Any
    max_group_tokens = 16384  # tokens in one pass through the layers: bounds memory, not results

    def _build(self, settings: EncoderSettings) -> None:
        """Make the modules; their parameters hold nothing meaningful yet."""
        # nn.Embedding draws its rows, which on the meta device loads torch's compiler; both classes
        # fill them anyway
        self.embed = nn.Embedding.from_pretrained(
            torch.empty(settings.vocab_size, settings.hidden_size), freeze=False
        )
        self.ranker = Ranker(settings)
        pattern: Sequence[str] = settings.layer_pattern
        self.layers = nn.ModuleList(
            AveyBLayer(settings, kind, pattern[:i].count(kind)) for i, kind in enumerate(pattern)
        )
        self.ln_f = None
        if settings.final_norm:
            self.ln_f = nn.RMSNorm(settings.hidden_size, settings.norm_eps)
        self.split_size, self.masked_tail = settings.split_size, settings.tail == "masked"
        self.gradient_checkpointing = False
        self._graphs: CudaGraphs | None = None

    def embeddings(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 `[T, D]`, the embeddings of token ids `[T]`."""
        with torch.inference_mode():
            return self.embed(torch.from_numpy(ids).to(self.device)).float().cpu().numpy()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without captured graphs."""
        return {**self.__dict__, "_graphs": None}

    def train(self, mode: bool = True) -> Self:
        """Set the mode as for any module; training frees the memory of captured graphs."""
        if mode:
            self._graphs = None
        return super().train(mode)

    def warm_up(self) -> int:
        """Encode a batch of each kind that is met, so that the first text does not pay for what is
        made once.

        On a GPU kernels are compiled and all graphs captured. Returns how many batches.
        """
        size = self.split_size
        with torch.inference_mode():
            if self._graphs_of_device() is None:
                widths = [w for w in group_widths(size) if w] + [size]
                batches = (
                    [[w] for w in widths] + [[w, max(1, w - 1)] for w in widths] + [[2 * size]]
                )
            else:
                batches = self._batches_of_replays()
            for counts in batches:
                table = split_table(
                    np.zeros(sum(counts), dtype=np.int64), counts, size, self.device
                )
                for _ in self.encode_splits(table, self.retrieve(table)):
                    pass
        return len(batches)

    def _batches_of_replays(self) -> list[list[int]]:
        """Return the lengths of texts of batches that take one replay each, of all that
        there are.
        """
        size = self.split_size
        found = [[(SHORTCUT_SPLITS + 1) * size]]
        for width in replay_widths(size):
            for n in dict.fromkeys(min(n * size // width, REPLAY_SIZES[-1]) for n in REPLAY_SIZES):
                found += [[width] * n, [width - 1] * n] if width > 1 else [[width] * n]
                if n > 1:  # documents of two splits, the second of this width
                    found += [[2 * size] * (n // 2), [size + width - 1] * (n // 2)]
        return found

    def encode_batch(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        embedding: torch.Tensor | None = None,
        every_layer: bool = False,
    ) -> torch.Tensor:
        """Encode a padded batch as `AveyBModel.forward` does: `[B, T, D]`.

        On a CUDA device the mask is best left on the CPU: one that is on the device is waited for,
        once.

        Args:
            input_ids: int64 `[B, T]`.
            attention_mask: `[B, T]`, non-zero where a token exists; None: all exist.
            embedding: `[V, D]`, what the ids are rows of; None: the model's own token embeddings.
            every_layer: return the outputs of all L layers side by side, `[B, T, L D]`, the last
                ones after the final norm.
        """
        if input_ids.dim() != 2:
            raise InputError(f"input_ids must be [B, T]; their shape is {tuple(input_ids.shape)}")
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise InputError(
                f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids"
                f" {tuple(input_ids.shape)}: unequal"
            )
        present = None if attention_mask is None else (attention_mask != 0).cpu().numpy()
        if present is not None and present.all():
            present = None
        is_plain = embedding is None and not every_layer
        if is_plain and present is None and self.is_short(input_ids):
            return self.encode_short(input_ids)
        table, places = padded_table(input_ids, present, self.split_size)
        width = self.embed.embedding_dim * (len(self.layers) if every_layer else 1)
        out = self.embed.weight.new_zeros(input_ids.numel(), width)
        pieces = self.encode_splits(
            table, self.retrieve(table, embedding), embedding=embedding, every_layer=every_layer
        )
        for slots, tokens in pieces:
            out = out.to(tokens.dtype).index_copy_(0, places[slots], tokens)
        return out.view(*input_ids.shape, out.shape[1])

    def is_short(self, input_ids: torch.Tensor) -> bool:
        """Return whether `encode_short` takes this `[B, T]`: inference on one group of texts of one
        split each.
        """
        batch, length = input_ids.shape
        fits = 0 < length <= self.split_size if self.masked_tail else length == self.split_size
        if not fits or batch == 0 or torch.is_grad_enabled():
            return False
        if self._graphs_of_device() is not None:
            return batch <= self._places(batch, length)
        return input_ids.numel() <= self._group_tokens(input_ids.device)

    def encode_short(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Encode single-split texts for which `is_short` holds, int64 `[B, T]`, on a fast path:
        `[B, T, D]`.
        """
        batch, length = input_ids.shape
        lengths, places = None, None
        if self._graphs_of_device() is not None:
            places, width = self._places(batch, length), _wider(length, self.split_size)
            if width > length or width < self.split_size:
                lengths = input_ids.new_full((batch,), length)
                input_ids = nn.functional.pad(input_ids, (0, width - length))
        return self._run(places, (input_ids, lengths, None, None), self.embed.weight)[:, :length]

    def _places(self, count: int, length: int) -> int:
        return replay_places(count, _wider(length, self.split_size), self.split_size)

    def retrieve(
        self, table: SplitTable, embedding: torch.Tensor | None = None
    ) -> Retrieved | None:
        """Return what `ranker.retrieve` finds for the splits of a table, as a CUDA graph if that is
        possible; None if the compressor would take nothing from it.

        `embedding` is that of `encode_batch`; a graph reads the model's own alone.
        """
        if not torch.is_grad_enabled() and self.ranker.takes_nothing():
            return None
        if embedding is not None:
            return self.ranker.retrieve(table, embedding)
        graphs, layout, embedding = self._graphs_of_device(), table.layout, self.embed.weight
        n, longest = len(layout.lengths), int(np.diff(layout.starts).max(initial=0))
        places = next((size for size in REPLAY_SIZES if size >= n), None)
        short = 1 < longest <= SHORTCUT_SPLITS and self.ranker.num_retrieved
        if (
            graphs is None
            or places is None
            or not short
            or not use_triton("auto", embedding, operation="split_scores")
        ):
            return self.ranker.retrieve(table, embedding)
        width = min(places, SHORTCUT_SPLITS)

        def retrieve(
            ids: torch.Tensor, lengths: torch.Tensor, first: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            return self.ranker.retrieve_short(ids, lengths, first, embedding, width)

        return Retrieved(*graphs(retrieve, places, (table.ids, table.lengths, table.first)))

    def encode_splits(
        self,
        table: SplitTable,
        retrieved: Retrieved | None,
        *,
        embedding: torch.Tensor | None = None,
        every_layer: bool = False,
    ) -> Pieces:
        """Run compressor and layers over the splits of a table, in groups of similar length.

        `embedding` and `every_layer` are those of `encode_batch`.

        Yields:
            Slots of the table int64 `[t]`, and the vectors `[t, D]` of the tokens in them. Every
            token appears once.
        """
        is_plain = embedding is None and not every_layer
        if embedding is None:
            table, embedding = self._used_embeddings(table)
        groups = table.groups(
            full_width=not self.masked_tail,
            max_tokens=self._group_tokens(table.ids.device),
            replays=is_plain and self._graphs_of_device() is not None,
        )
        for group in groups:
            inputs = self.ranker.inputs(table, retrieved, group)
            vectors = self._run(group.places, inputs, embedding, every_layer=every_layer)
            rows = vectors.flatten(0, 1)
            yield table.slots(group), rows if group.tokens is None else rows[group.tokens]

    def _used_embeddings(self, table: SplitTable) -> tuple[SplitTable, torch.Tensor]:
        """Return a table and the token embeddings that its ids are rows of.

        A look-up's gradient is as large as what it looks up in, so with gradients these are only
        the rows that the batch uses.
        """
        weight = self.embed.weight
        if not (torch.is_grad_enabled() and weight.requires_grad):
            return table, weight
        used, ids = torch.unique(table.ids, return_inverse=True)
        return replace(table, ids=ids), self.embed(used)

    def token_sums(
        self,
        ids: np.ndarray,
        counts: list[int],
        runs: np.ndarray,
        *,
        codec: TokenCodec | None,
        watch: Callable[[int], None],
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode texts and sum their tokens' vectors over runs of tokens.

        Args:
            ids: int32 `[T]`, the tokens of all texts, one after another.
            counts: tokens of each text.
            runs: int64 `[n]`, tokens of each run, none across two texts.
            codec: makes token vectors small; None: they are not wanted.
            watch: called with the number of tokens of each group that was read.

        Returns:
            Sums float32 `[n, d]`; codes `[T, row_bytes]`, or None without a codec.
        """
        with torch.inference_mode():
            owner = np.repeat(np.arange(len(runs)), runs)  # the run of a token
            sums = torch.zeros(len(runs), self.embed.embedding_dim, device=self.device)
            # usually one query: no table is needed
            if len(counts) == 1 and not codec:
                text, owners = to_device([ids.astype(np.int64)[None], owner], self.device)
                if self.is_short(text):
                    hidden = self.encode_short(text)[0]
                    return sums.index_add_(0, owners, hidden.float()).cpu().numpy(), None
            table, pieces = self._pieces(ids, counts)
            (owners,) = to_device([table.layout.spread(owner)], self.device)
            codes = codec.empty(table.ids.numel()) if codec else None
            for slots, hidden in pieces:
                sums.index_add_(0, owners[slots], hidden.float())
                if codec and codes is not None:
                    codes[slots.cpu().numpy()] = codec.encode(hidden)
                watch(len(slots))
            if codes is not None:
                codes = np.concatenate([codes[taken] for taken in table.layout.taken()])
            return sums.cpu().numpy(), codes

    def token_rows(self, ids: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Encode texts, as for `token_sums`, token by token: float32 `[T, d]`, unit rows."""
        with torch.inference_mode():
            table, pieces = self._pieces(ids, counts)
            out = torch.zeros(table.ids.numel(), self.embed.embedding_dim)
            for slots, hidden in pieces:
                out[slots.cpu()] = torch.nn.functional.normalize(hidden.float(), dim=-1).cpu()
            return torch.cat([out[:0], *(out[taken] for taken in table.layout.taken())]).numpy()

    def _pieces(self, ids: np.ndarray, counts: Sequence[int]) -> tuple[SplitTable, Pieces]:
        """Return the splits of some texts, and what `encode_splits` yields for them."""
        table = split_table(ids, counts, self.split_size, self.device)
        return table, self.encode_splits(table, self.retrieve(table))

    def _run(
        self,
        places: int | None,
        inputs: tuple[torch.Tensor | None, ...],
        embedding: torch.Tensor,
        *,
        every_layer: bool = False,
    ) -> torch.Tensor:
        """Run compressor, layers and final norm on what `ranker.inputs` gives, with `places` as a
        CUDA graph: `[m, T, D]`, or `[m, T, L D]` of every layer.
        """

        def encode(*inputs: torch.Tensor | None) -> tuple[torch.Tensor]:
            ids, lengths, retrieved, weights = inputs
            assert ids is not None
            x = self.ranker.compress(ids, lengths, retrieved, weights, embedding)
            counts = lengths if self.masked_tail else None
            if every_layer:
                return (torch.cat(self.layer_outputs(x, counts), dim=-1),)
            return (self.run_layers(x, counts),)

        if places is None or (graphs := self._graphs_of_device()) is None:
            return encode(*inputs)[0]
        return graphs(encode, places, inputs)[0]

    def _graphs_of_device(self) -> CudaGraphs | None:
        """Return the graphs of the device that the model is on, or None where inference runs launch
        by launch.
        """
        device = self.device
        if (
            device.type not in _REPLAYS
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cuda")
            or torch.compiler.is_compiling()
            or any(intercepted(layer) for layer in self.layers)
        ):
            return None
        if self._graphs is None or self._graphs.device != device:
            self._graphs = CudaGraphs(self, device)
        return self._graphs

    def run_layers(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Run the layers and the final norm on compressed splits `[m, T, D]` of `lengths` tokens
        (None: all T).
        """
        x = self.run_in_order(list(self.layers), x, lengths)
        return self.normed(x)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the final norm, where the model has one, to `[..., D]`."""
        return x if self.ln_f is None else self.ln_f(x)

    def layer_outputs(self, x: torch.Tensor, lengths: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the output of each layer, `[m, T, D]`, the last one after the final norm; see
        `run_layers`.
        """
        *earlier, last = self.outputs_in_order(list(self.layers), x, lengths)
        return [*earlier, self.normed(last)]

    def run_in_order(
        self, modules: list[nn.Module], x: torch.Tensor, lengths: torch.Tensor | None
    ) -> torch.Tensor:
        """Run layers one after another, without the final norm; see `run_layers`."""
        layers = cast("list[AveyBLayer]", modules)
        if fuses_passes(x) and all(
            fusable(layer, x.dtype) and not intercepted(layer) for layer in layers
        ):
            return run_fused(layers, x, lengths)
        for output in self.outputs_in_order(modules, x, lengths):
            x = output
        return x

    def outputs_in_order(
        self, modules: list[nn.Module], x: torch.Tensor, lengths: torch.Tensor | None
    ) -> Iterator[torch.Tensor]:
        """Run layers one after another, and yield the output of each."""
        for layer in modules:
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, lengths)
            else:
                x = layer(x, lengths)
            yield x

    def _group_tokens(self, device: torch.device) -> int:
        small = device.type == "cpu" and not torch.is_grad_enabled()
        return min(self.max_group_tokens, _CPU_GROUP_TOKENS) if small else self.max_group_tokens


class InferenceModel(SplitEncoder, nn.Module):
    """An Avey-B encoder that only encodes."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Make an encoder whose parameters hold nothing meaningful; `load` fills them."""
        super().__init__()
        self.config = settings
        self._build(settings)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # read-only, as in transformers
        """The device of the parameters."""
        return self.embed.weight.device

    @classmethod
    def load(cls, folder: Path) -> InferenceModel:
        """Load the encoder of a model folder, in this package's format or the authors', as float32
        on the CPU.
        """
        settings = settings_of(folder)
        path = folder / "model.safetensors"
        if not path.is_file():
            raise no_weights(folder, "no model.safetensors")
        try:
            stored = float_table(load_file(path), path)
        except SafetensorError as error:
            raise ModelError(
                f"{path}: damaged or cut short ({error}); copy or download it again"
            ) from error
        is_theirs = is_released(read_object(folder / "config.json"))
        own_names = released_tensors if is_theirs else encoder_tensors
        tensors = {name: tensor.float() for name, tensor in own_names(stored).items()}
        # shapes only: the sizes of a damaged configuration must not take memory
        with torch.device("meta"):
            wanted = {name: tensor.shape for name, tensor in cls(settings).state_dict().items()}
        check_fits(folder, tensors, wanted)
        model = cls(settings)
        model.load_state_dict(tensors, assign=True)
        return model.eval()


def _wider(length: int, size: int) -> int:
    """The width that texts of `length` tokens are padded to in replays."""
    return next(width for width in replay_widths(size) if width >= length)

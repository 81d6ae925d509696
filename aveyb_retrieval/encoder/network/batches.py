"""What `Embedder` asks of a model in torch: the outputs of a batch of texts, summed or token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aveyb_retrieval.encoder.network.splits import SplitTable, split_table
from aveyb_retrieval.kernels.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

    Pieces = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class BatchEncoder:
    """Mixed into `SplitEncoder`; `OnnxModel` has the same methods. Token ids come as int32 `[T]`, text after text."""

    embed: Any
    ranker: Any
    encode_splits: Any
    encode_short: Any
    is_short: Any
    device: torch.device
    split_size: int

    def token_sums(
        self,
        ids: np.ndarray,
        counts: Sequence[int],
        runs: np.ndarray,
        *,
        first_needed: Sequence[int],
        funnel: bool,
        codec: TokenCodec | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode texts and sum their tokens' vectors over runs of tokens.

        Args:
            ids: int `[T]`, the tokens of all texts.
            counts: tokens of each text.
            runs: int64 `[n]`, tokens of each run, none across two texts.
            first_needed: in each text, the first token whose output is needed; earlier ones may be left out of sums.
            funnel: False keeps every token through all layers, as for queries.
            codec: makes token vectors small; None: they are not wanted.

        Returns:
            Sums float32 `[n, d]`; codes `[T, row_bytes]`, zeros where none is needed, or None without a codec.
        """
        with torch.inference_mode():
            owner = np.repeat(np.arange(len(runs)), runs)  # the run of a token
            sums = torch.zeros(len(runs), self.embed.embedding_dim, device=self.device)
            if len(counts) == 1 and first_needed[0] == 0 and not codec:  # usually one query: no table is needed
                text, owners = to_device([ids.astype(np.int64)[None], owner], self.device)
                if self.is_short(text):
                    hidden = self.encode_short(text, funnel=funnel)[0]
                    return sums.index_add_(0, owners, hidden.float()).cpu().numpy(), None
            table, pieces = self._pieces(ids, counts, first_needed, funnel=funnel, recover=codec is not None)
            (owners,) = to_device([table.layout.spread(owner)], self.device)
            codes = codec.empty(table.ids.numel()) if codec else None
            for slots, hidden, single in pieces:
                sums.index_add_(0, owners[slots], hidden.float())
                if codec and codes is not None:
                    codes[slots.cpu().numpy()] = codec.encode(single)
            if codes is not None:
                codes = np.concatenate([codes[taken] for taken in table.layout.taken()])
            return sums.cpu().numpy(), codes

    def token_rows(self, ids: np.ndarray, counts: Sequence[int], *, funnel: bool) -> np.ndarray:
        """Encode texts token by token.

        Args:
            ids: as for `token_sums`, as are counts and funnel.

        Returns:
            float32 `[T, d]`, unit rows.
        """
        with torch.inference_mode():
            table, pieces = self._pieces(ids, counts, [0] * len(counts), funnel=funnel, recover=True)
            out = torch.zeros(table.ids.numel(), self.embed.embedding_dim)
            for slots, _, hidden in pieces:
                out[slots.cpu()] = torch.nn.functional.normalize(hidden.float(), dim=-1).cpu()
            return torch.cat([out[:0], *(out[taken] for taken in table.layout.taken())]).numpy()

    def _pieces(
        self, ids: np.ndarray, counts: Sequence[int], first_needed: Sequence[int], *, funnel: bool, recover: bool
    ) -> tuple[SplitTable, Pieces]:
        """Return the splits of some texts, and what `encode_splits` yields for those that are needed."""
        table = split_table(ids, counts, self.split_size, self.device)
        retrieved = self.ranker.retrieve(table, self.embed.weight)
        needed = table.layout.needed(first_needed)
        return table, self.encode_splits(table, retrieved, needed, funnel=funnel, recover=recover)

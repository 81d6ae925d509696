"""The layers on a few splits, replayed as CUDA graphs.

Small batches are launch-bound (about ten kernels per layer), so the layers are replayed as a CUDA graph. One graph is
captured for each pair of sizes: splits rounded up to a power of two, tokens per split to one of a few widths. Stale
data in the padding is harmless: splits are independent and padded rows are masked.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.encoder.network.inference import ParameterVersions
from aveyb_retrieval.kernels.dispatch import forced_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_NARROWEST = 16


@dataclass(frozen=True)
class Captured:
    """One captured graph with its input and output buffers.

    Attributes:
        x: `[n, T, D]`, where the input goes.
        lengths: int64 `[n]`, or None where all splits are full.
        replay: runs the graph.
        out: `[n, T, D]`, where the output is after `replay`.
    """

    x: torch.Tensor
    lengths: torch.Tensor | None
    replay: Callable[[], None]
    out: torch.Tensor


class LayerGraphs:
    """A model's layers, run as graphs where a group of splits is small; captured again when a parameter changes.

    Graphs share their memory, and an output is copied before the next one runs; a lock and an event keep threads and
    streams in order.
    """

    def __init__(
        self,
        run: Callable[[torch.Tensor, torch.Tensor | None, bool], torch.Tensor],
        module: nn.Module,
        *,
        split_size: int,
        max_tokens: int,
    ) -> None:
        """Prepare for groups on the device of `module`; nothing is captured yet.

        Args:
            run: what a graph records: x `[n, T, D]`, lengths int64 `[n]` or None, and whether to use the funnel ->
                `[n, T, D]`.
            module: holds the parameters that `run` reads.
            split_size: S, the largest T.
            max_tokens: the largest n times T that runs as a graph, padding included.
        """
        self._run, self._module, self._split_size, self._max_tokens = run, module, split_size, max_tokens
        self._device = next(module.parameters()).device
        self._graphs: dict[tuple[object, ...], Captured] = {}
        self._inputs: dict[torch.dtype, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._versions = ParameterVersions(module)
        on_cuda = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_cuda else None
        self._free = torch.cuda.Event() if on_cuda else None  # reached when the last output has been copied

    def can_replay(self, x: torch.Tensor) -> bool:
        """Return whether a group `[n, T, D]` runs as a graph."""
        n, width = self._sizes(x)
        return (
            x.device == self._device
            and 0 < n * width <= self._max_tokens
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled(x.device.type)
            and not torch.compiler.is_compiling()
        )

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor | None, funnel: bool) -> torch.Tensor:
        """Return what `run` gives; `can_replay(x)` must hold.

        Args:
            x: `[n, T, D]`.
            lengths: int64 `[n]`, valid tokens of each split; None when all T are.
            funnel: as for `run`.

        Returns:
            `[n, T, D]`, a copy.
        """
        n, width = x.shape[:2]
        sizes = self._sizes(x)
        full = lengths is None and width == sizes[1]
        with self._lock:
            if self._free is not None:
                torch.cuda.current_stream(self._device).wait_event(self._free)
            if not self._versions.unchanged():
                self._graphs.clear()
                self._versions = ParameterVersions(self._module)
            key = (*sizes, full, funnel, x.dtype, forced_backend())
            if key not in self._graphs:
                self._graphs[key] = self._capture(*sizes, full, funnel, x)
            graph = self._graphs[key]
            graph.x[:n, :width].copy_(x)
            if graph.lengths is not None:
                graph.lengths[:n] = width if lengths is None else lengths
            graph.replay()
            out = graph.out[:n, :width].clone()
            if self._free is not None:
                self._free.record(torch.cuda.current_stream(self._device))
        return out

    def clear(self) -> None:
        """Drop every graph, because what `run` computes has changed."""
        with self._lock:
            self._graphs.clear()

    def _sizes(self, x: torch.Tensor) -> tuple[int, int]:
        """Return the graph's number of splits and tokens per split for a group `[n, T, D]`."""
        width = min(max(_NARROWEST, _power_of_two(x.shape[1])), self._split_size)
        return _power_of_two(x.shape[0]), width

    def _capture(self, n: int, width: int, full: bool, funnel: bool, like: torch.Tensor) -> Captured:
        # Outside of inference mode, so that what is allocated can be written in any mode.
        with torch.inference_mode(False), torch.no_grad():
            if like.dtype not in self._inputs:
                self._inputs[like.dtype] = torch.zeros(
                    self._max_tokens * like.shape[2], dtype=like.dtype, device=self._device
                )
            x = self._inputs[like.dtype][: n * width * like.shape[2]].view(n, width, like.shape[2])
            lengths = None if full else torch.full((n,), width, device=self._device)
            replay, out = self._record(lambda: self._run(x, lengths, funnel))
        return Captured(x, lengths, replay, out)

    def _record(self, run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Return a function that runs `run` again on the same memory, and the output that it writes."""
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):  # kernels are compiled and libraries take their workspaces before the recording
                    run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                out = run()
        return graph.replay, out


def _power_of_two(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()

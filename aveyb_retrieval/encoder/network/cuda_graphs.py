"""Inference on CUDA as replays of captured graphs: one launch for the host where there are
hundreds.

A launch costs a host more than the device needs for what it does: run one by one, the layers take
twice as long on 16,384 tokens, and four times on 4,096. So the few sequences that inference
consists of are captured at a few sizes (`SplitLayout.replays`), each when it is first needed, and a
batch of any size is a number of replays. What a sequence does not fill is never read: splits are
independent of each other.

A graph reads parameters where they lie. Values written there count at once; a parameter that lies
elsewhere, or a module that was exchanged, drops all graphs.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels.dispatch import forced_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    Function = Callable[..., tuple[torch.Tensor, ...]]

_log = logging.getLogger("aveyb_retrieval.encoder")


@dataclass(frozen=True)
class Captured:
    """One captured sequence, which `replay` runs: where its inputs go, `[n, ...]` each or None, and
    its outputs are.

    Other sequences write to the outputs, too.
    """

    inputs: tuple[torch.Tensor | None, ...]
    outputs: tuple[torch.Tensor, ...]
    replay: Callable[[], None]


class CudaGraphs:
    """The captured sequences of one model.

    They share all memory but that of the inputs, and outputs are copied before the next one runs; a
    lock and an event keep threads and streams in order.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Prepare for a module that lies on `device`; nothing is captured yet."""
        self._module, self.device = module, device
        self._captured: dict[tuple[object, ...], Captured] = {}
        # of the outputs, by their number
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._lock = threading.Lock()
        self._layout = _Layout(module)
        on_cuda = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_cuda else None
        # reached when the last output has been copied
        self._free = torch.cuda.Event() if on_cuda else None

    def __call__(
        self, function: Function, places: int, inputs: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor, ...]:
        """Return what `function` gives for the inputs, copies `[m, ...]` each.

        Args:
            function: of tensors `[n, ...]`, to a tuple of such; it never waits for the device, and
                what it gives for one of the n does not depend on the others. Its name and the
                inputs' shapes decide the sequence.
            places: n.
            inputs: `[m, ...]` each, m up to n, or None.
        """
        count = next(len(x) for x in inputs if x is not None)
        shapes = tuple(None if x is None else (x.shape[1:], x.dtype) for x in inputs)
        name = (function.__name__, places, shapes, forced_backend())
        with self._lock:
            if self._free is not None:
                torch.cuda.current_stream(self.device).wait_event(self._free)
            if not self._layout.holds():
                self._captured.clear()
                self._layout = _Layout(self._module)
            if name not in self._captured:
                self._captured[name] = self._capture(function, places, inputs)
            captured = self._captured[name]
            for into, x in zip(captured.inputs, inputs, strict=True):
                if into is not None and x is not None:
                    into[:count].copy_(x)
                    if into.dim() == 1 and count < places:
                        into[count:] = 0  # splits without a token cost the kernels nothing
            captured.replay()
            outputs = tuple(out[:count].clone() for out in captured.outputs)
            if self._free is not None:
                self._free.record(torch.cuda.current_stream(self.device))
        return outputs

    def _capture(
        self, function: Function, places: int, like: Sequence[torch.Tensor | None]
    ) -> Captured:
        begin, before = time.perf_counter(), self._reserved()
        # Outside of inference mode, so that what is allocated can be written in any mode.
        with torch.inference_mode(False), torch.no_grad():
            inputs = tuple(None if x is None else x.new_zeros((places, *x.shape[1:])) for x in like)
            outputs: tuple[torch.Tensor, ...] = ()

            def run() -> None:
                for out, made in zip(outputs, function(*inputs), strict=True):
                    out.copy_(made)

            outputs = tuple(self._buffer(i, made) for i, made in enumerate(function(*inputs)))
            replay = self._record(run)
        seconds, mebibytes = time.perf_counter() - begin, (self._reserved() - before) / 2**20
        shape = next(tuple(x.shape) for x in inputs if x is not None)
        _log.info(
            "captured %s of %s in %.1f s, %.0f MiB", function.__name__, shape, seconds, mebibytes
        )
        return Captured(inputs, outputs, replay)

    def _buffer(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory of the shape of `like`: that of all sequences, unless it is too small."""
        held = self._buffers.get((number, like.dtype))
        if held is None or held.numel() < like.numel():
            held = self._buffers[number, like.dtype] = torch.empty(
                like.numel(), dtype=like.dtype, device=like.device
            )
        return held[: like.numel()].view(like.shape)

    def _reserved(self) -> int:
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs `run` again on the same memory."""
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run()  # libraries take their workspaces of a stream before the recording
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                run()
        return graph.replay


class _Layout:
    """Which modules and parameters a module has, and where the parameters lie."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [(part._modules, dict(part._modules)) for part in module.modules()]
        self._parameters = [
            (part._parameters, dict(part._parameters), _places(part._parameters))
            for part in module.modules()
            if part._parameters
        ]

    def holds(self) -> bool:
        """Return whether all of it is as it was."""
        return all(now == then for now, then in self._modules) and all(
            now.keys() == then.keys()
            and all(now[name] is then[name] for name in then)
            and _places(now) == places
            for now, then, places in self._parameters
        )


def _places(parameters: dict[str, nn.Parameter | None]) -> list[tuple[object, ...]]:
    return [(p.data_ptr(), p.shape, p.dtype) for p in parameters.values() if p is not None]

"""A device that is not there: tensors that say they are on it, hold values, and count what the host
waits for.

The host waits for a CUDA device when it reads a value, copies to it from memory that is not
page-locked, copies from it, or asks for a result whose size depends on values (`nonzero`, boolean
indexing, `unique`). Here every operation runs on the values, in CPU memory; a mixture of devices is
an error, as on a real one. Kernels give zeros. The device calls itself "meta", the one besides the
CPU that torch has in every build.

python -m rigs.kernels.pretended_device     # the counts of docs/kernels.md
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from aveyb_retrieval.kernels import dispatch

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = torch.device("meta")
# Operations whose result has a size that depends on values, or that give the host a value.
WAITS = {
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the device; `held` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        tensor.held = held
        return tensor

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeviceTensor({self.held})"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of `pretended_device()`")


class _Device(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._locked: set[int] = set()  # page-locked memory, by its address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        namespace, name = func._schema.name.split("::")
        if name == "_has_compatible_shallow_copy_type":
            return False
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = any(isinstance(t, DeviceTensor) for t in tensors)
        asked = kwargs.get("device")
        to = there if asked is None else torch.device(asked) == DEVICE
        self._count(name, tensors, args, kwargs, there=there, to=to)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        locked = kwargs.pop("pin_memory", False)
        with _disable_current_modes():
            if there and namespace == "aveyb":
                out = tree_map(_zeros, func(*tree_map(_shape, args), **tree_map(_shape, kwargs)))
            else:
                values, more = tree_map(_held, (args, kwargs))
                out = func(*values, **more)
                if name == "_to_copy" and any(out is value for value in values):
                    out = out.clone()
            if locked:
                self._locked.add(out.untyped_storage().data_ptr())
            schema = zip(func._schema.arguments, args, strict=False)
            written = [
                value
                for argument, value in schema
                if argument.alias_info and argument.alias_info.is_write
            ]
            if written and isinstance(out, torch.Tensor):
                return written[0]
            return tree_map(
                lambda x: DeviceTensor(x) if to and isinstance(x, torch.Tensor) else x, out
            )

    def _count(
        self,
        name: str,
        tensors: list[torch.Tensor],
        args: Any,
        kwargs: dict[str, Any],
        *,
        there: bool,
        to: bool,
    ) -> None:
        if name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            into = to if name == "_to_copy" else isinstance(args[0], DeviceTensor)
            goes_on = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            if isinstance(source, DeviceTensor):
                self.waits["copy to the host"] += not into
            elif into:
                self.waits["copy of unlocked memory"] += not (
                    goes_on and source.untyped_storage().data_ptr() in self._locked
                )
        elif there:
            foreign = sum(1 for t in tensors if not isinstance(t, DeviceTensor) and t.dim())
            if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
                masks = sum(
                    1 for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)
                )
                self.waits["boolean index"] += masks
                self.waits["copy of unlocked memory"] += foreign
            elif foreign:
                raise RuntimeError(f"{name}: tensors on the device and on the CPU together")
            self.waits[name] += name in WAITS or (
                name == "repeat_interleave" and kwargs.get("output_size") is None
            )


def _held(x: Any) -> Any:
    return x.held if isinstance(x, DeviceTensor) else x


def _shape(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")


def _zeros(x: Any) -> Any:
    return torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x


def _no_scores(
    vectors: torch.Tensor, _: Any, lengths: torch.Tensor, first: torch.Tensor, width: int
) -> torch.Tensor:
    split, column = (torch.arange(size, device=vectors.device) for size in (len(vectors), width))
    scores = vectors.new_zeros(len(vectors), width, dtype=torch.float32)
    return scores.masked_fill(first[:, None] + column >= split[:, None], float("-inf"))


def no_scores_by_token(
    table: torch.Tensor, scales: torch.Tensor, vocabulary: Any, width: int
) -> torch.Tensor:
    """What stands for `kernels.triton.maxsim.by_token`."""
    return table.new_zeros(len(vocabulary.first), width, dtype=torch.float32)


def _tensor(
    data: Any, *, device: Any = None, make: Any = torch.tensor, **options: Any
) -> torch.Tensor:
    """`torch.tensor`, whose own copy to a device does not show."""
    made: torch.Tensor = make(data, **options)
    return made if device is None else made.to(device)


@contextmanager
def pretended_device() -> Iterator[Counter[str]]:
    """Within the block `DEVICE` is taken for a GPU with Triton; gives what the host waited for, by
    kind.
    """
    from aveyb_retrieval.kernels.triton import maxsim

    device = _Device()
    with ExitStack() as stack:
        patches = [
            mock.patch.object(
                torch.Tensor, "is_cuda", property(lambda tensor: tensor.device == DEVICE)
            ),
            mock.patch.object(dispatch, "_TRITON_INSTALLED", True),
            # do not ask for the device's capability
            mock.patch.object(dispatch, "_INTERPRETING", True),
            mock.patch.object(torch, "tensor", _tensor),
            # its tensors have no versions, views need one
            mock.patch.object(torch, "inference_mode", lambda mode=True: torch.no_grad()),
            # there is none for this device
            mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext()),
            mock.patch.object(maxsim, "all_pairs", _no_scores),
            mock.patch.object(maxsim, "by_token", no_scores_by_token),
            mock.patch.object(dispatch, "_FROM_PAGE_LOCKED", (DEVICE.type,)),
        ]
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(device)
        yield device.waits


def forward_waits(
    texts: int, tokens: int, *, ragged: bool = False, mask: str | None = None, times: int = 1
) -> Counter[str]:
    """What the host waits for in forwards of a small released model.

    Args:
        texts: B.
        tokens: T, the length of the longest; splits have 16.
        ragged: the texts have different lengths.
        mask: "host" or "device": where the attention mask is; None: there is none.
        times: how many forwards; the first one makes what is kept.
    """
    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.network.model import AveyBModel

    torch.manual_seed(0)
    config = AveyBConfig.released_base(
        vocab_size=300, num_hidden_layers=2, hidden_size=32, split_size=16, tail="masked"
    )
    model = AveyBModel(config).eval()
    model.max_group_tokens = 64 * 16  # as many splits as a group of the base model has
    ids, present = (
        torch.randint(0, 300, (texts, tokens)),
        torch.ones(texts, tokens, dtype=torch.int64),
    )
    if ragged:
        present[torch.arange(tokens) >= torch.linspace(1, tokens, texts)[:, None]] = 0
    with pretended_device() as waits, torch.no_grad():
        model.to(DEVICE)
        there = ids.to(DEVICE)
        given = {None: None, "host": present}.get(mask, present.to(DEVICE))
        waits.clear()
        for _ in range(times):
            model(there, given)
    return +waits


CASES = {
    "one split each, no mask": (8, 16, False, None),
    "two splits each, no mask (512 tokens)": (8, 32, False, None),
    "8 splits each, no mask (2K)": (8, 128, False, None),
    "32 splits each, no mask (8K)": (8, 512, False, None),
    "384 splits each, no mask (96K)": (8, 384 * 16, False, None),
    "up to 32 splits, mask on the device": (8, 512, True, "device"),
    "up to 384 splits, mask on the device": (8, 384 * 16, True, "device"),
}


if __name__ == "__main__":
    for name, (texts, tokens, ragged, mask) in CASES.items():
        waits = forward_waits(texts, tokens, ragged=ragged, mask=mask)
        print(f"| {name} | {sum(waits.values())} | {dict(waits)} |", flush=True)

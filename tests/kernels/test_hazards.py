"""The detector of races on loops as Triton 3.6 compiles them for Hopper, shortened to
what matters.
"""

from __future__ import annotations

from rigs.kernels import hazards

SHARED = "!ttg.memdesc<{n}x64x64xbf16, #shared, #smem, mutable>"


def from_shared_memory(buffers: int, pending: int, ahead: int, *, copy_first: bool = False) -> str:
    """A product whose operands come from `buffers` buffers each, with the copies of `ahead`
    iterations before it.
    """
    lines = [f"  %{x} = ttg.local_alloc : () -> {SHARED.format(n=buffers)}" for x in "ab"]
    for i in range(ahead):
        for x in "ab":
            lines.append(
                f"  %{x}{i} = ttg.memdesc_index %{x}[%c{i}] : {SHARED.format(n=buffers)} -> x"
            )
            lines.append(
                f"  %t{x}{i} = ttg.async_copy_global_to_local %p, %{x}{i} mask %m : x -> x"
            )
            lines.append(f"  %g{x}{i} = ttg.async_commit_group tokens %t{x}{i}")
    copies = []
    for x in "ab":
        copies.append(f"    %{x}_to = ttg.memdesc_index %{x}[%j] : {SHARED.format(n=buffers)} -> x")
        copies.append(
            f"    %{x}_copy = ttg.async_copy_global_to_local %p, %{x}_to mask %m : x -> x"
        )
        copies.append(f"    %{x}_group = ttg.async_commit_group tokens %{x}_copy")
    product = [
        f"    %w = ttg.async_wait %ga0, %gb0 {{num = {2 * (ahead - 1)} : i32}}",
        f"    %a_now = ttg.memdesc_index %a[%i] : {SHARED.format(n=buffers)} -> x",
        f"    %b_now = ttg.memdesc_index %b[%i] : {SHARED.format(n=buffers)} -> x",
        "    %b_t = ttg.memdesc_trans %b_now {order = array<i32: 1, 0>} : x -> x",
        (
            "    %dot = ttng.warp_group_dot %a_now, %b_t, %acc {isAsync = true} :"
            " !ttg.memdesc<64x64xbf16> * x -> x"
        ),
        (
            f"    %done:3 = ttng.warp_group_dot_wait %dot, %a_now, %b_t {{pendings = {pending} :"
            " i32} : x"
        ),
    ]
    body = copies + product if copy_first else product + copies
    return "\n".join(
        [
            *lines,
            "  %out:2 = scf.for %k = %c0 to %n step %c1 iter_args(%acc = %z) -> (x) {",
            *body,
            "  }",
        ]
    )


def from_registers(pending: int, operand: str, definition: str) -> str:
    """A product whose first operand is in registers, made within the loop by `definition` or before
    it.
    """
    return f"""
  %b = ttg.local_alloc : () -> {SHARED.format(n=3)}
  %outside = arith.truncf %x : x to x
  %b_to = ttg.memdesc_index %b[%c0] : {SHARED.format(n=3)} -> x
  %copy = ttg.async_copy_global_to_local %p, %b_to mask %m : x -> x
  %out = scf.for %k = %c0 to %n step %c1 iter_args(%acc = %z) -> (x) {{
    {definition}
    %b_now = ttg.memdesc_index %b[%c0] : {SHARED.format(n=3)} -> x
    %dot = ttng.warp_group_dot {operand}, %b_now, %acc {{isAsync = true}} : tensor<64x16xbf16> * x -> x
    %done:2 = ttng.warp_group_dot_wait %dot, %b_now {{pendings = {pending} : i32}} : x
    scf.yield %done#0 : x
  }}
  %end = ttng.warp_group_dot_wait %out {{pendings = 0 : i32}} : x
"""  # noqa: E501


def test_a_race_of_a_refilled_buffer_is_found() -> None:
    for buffers, ahead in ((1, 1), (2, 2)):
        races = hazards.find(from_shared_memory(buffers, pending=1, ahead=ahead)).races
        assert len(races) == 2
        assert races[0] == f"buffer: %a ({buffers} of it) is refilled while %dot may read it"


def test_no_race_with_a_buffer_more_or_nothing_pending() -> None:
    assert hazards.find(from_shared_memory(3, pending=1, ahead=2)).races == ()
    assert hazards.find(from_shared_memory(2, pending=0, ahead=2)).races == ()


def test_a_race_of_two_pending_products_is_found() -> None:
    assert hazards.find(from_shared_memory(3, pending=2, ahead=2)).races != ()
    assert hazards.find(from_shared_memory(4, pending=2, ahead=2)).races == ()
    assert hazards.find(from_shared_memory(3, pending=1, ahead=2, copy_first=True)).races != ()


def test_a_race_of_rewritten_registers_is_found() -> None:
    for definition in (
        "%low = arith.truncf %x : x to x",
        "%high, %low = tt.split %x : x -> x",
        "%low:2 = f %x : x",
    ):
        operand = "%low#1" if ":2" in definition else "%low"
        race = f"registers: {operand} is rewritten while %dot may read it"
        assert hazards.find(from_registers(3, operand, definition)).races == (race,)
        assert hazards.find(from_registers(0, operand, definition)).races == ()


def test_no_race_of_registers_that_the_loop_does_not_write() -> None:
    assert hazards.find(from_registers(1, "%outside", "%low = f %x : x")).races == ()


def test_how_far_copies_run_ahead() -> None:
    assert hazards.find(from_shared_memory(2, pending=0, ahead=1)).prefetched == 0
    assert hazards.find(from_shared_memory(3, pending=0, ahead=2)).prefetched == 1
    assert hazards.find(from_shared_memory(4, pending=0, ahead=3)).prefetched == 2

"""Compiled from _kernels.c. Addresses are `Tensor.data_ptr`s; 0 is for what is not there."""

from array import array

VERSION: int

def run(
    sgemm: int,
    widths: array[int],
    parameters: array[int],
    members: array[int],
    epsilon: float,
    x: int,
    rows: int,
    values: int,
    aim: int,
    told: int,
    least: int,
    weight: float,
    first: int,
    count: int,
    d_x: int,
    moved: array[int] | None,
    pace: array[float] | None,
    rooms: int,
    threads: int,
    /,
) -> None: ...
def room(widths: array[int], rows: int, /) -> int: ...

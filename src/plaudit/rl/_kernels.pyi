"""Compiled from _kernels.c. Addresses are `Tensor.data_ptr`s, those of gradients that nobody wants 0."""

VERSION: int

def norm_relu(
    product: int,
    bias: int,
    scale: int,
    shift: int,
    out: int,
    mean: int,
    rstd: int,
    members: int,
    rows: int,
    width: int,
    stride: int,
    epsilon: float,
    threads: int,
    /,
) -> None: ...
def norm_relu_backward(
    gradient: int,
    product: int,
    out: int,
    bias: int,
    scale: int,
    mean: int,
    rstd: int,
    d_bias: int,
    d_scale: int,
    d_shift: int,
    members: int,
    rows: int,
    width: int,
    threads: int,
    /,
) -> None: ...

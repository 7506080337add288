"""Critics on a CPU one after the other, each from its inputs to its gradients, by a kernel in C.

With torch's operations a layer of all of them is one product, but between the products lie bias, LayerNorm and ReLU, a
dozen ways through numbers that are too many for the processor's cache, and with networks for control that takes as
long as the products do. One network's numbers do fit. The kernel is compiled where the package is installed, and calls
the product of matrices that torch itself calls; where it was not, for want of a compiler, and for other devices, types
and activations, torch's operations do the same.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from array import array
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import torch

from plaudit.rl.accel.critics import Ascent, Critics, Improved, Together, Training
from plaudit.rl.accel.ensemble_layer import EPSILON
from plaudit.rl.accel.flat_adam import BETAS
from plaudit.rl.networks.ensemble import Ensemble
from plaudit.utils.threads import kernel_threads

try:  # After torch, whose threads it uses.
    from plaudit.rl.accel import _kernels
except ImportError as error:
    MISSING: str | None = str(error)
else:
    MISSING = None if _kernels.VERSION == 2 else "it is of another version"
"""Why there is no kernel; `None` where there is one."""

logger = logging.getLogger("plaudit")


def quickest_critics(network: Ensemble, training: Training | None = None, beside: Critics | None = None) -> Critics:
    """The quickest way to compute an ensemble of critics.

    Args:
        network: The ensemble. Its parameters must not move in memory any more.
        training: How it learns; `None` where it does not.
        beside: Another such, of an ensemble of the same shape, that is done with its numbers when this one begins: they
            share their room, which is still in the processor's cache then.
    """
    weight = network.weights[0]
    fits = network.activation == "relu" and weight.device.type == "cpu" and weight.dtype == torch.float32
    if fits and len(network.weights) > 1:
        why = lacks()
        if why is None:
            return MemberByMember(network, training, beside if isinstance(beside, MemberByMember) else None)
        _tell(why)
    return Together(network, training, beside if isinstance(beside, Together) else None)


@functools.cache
def _tell(why: str) -> None:
    """Says once that learning is slower than it could be."""
    logger.info(
        "The kernel that computes critics cannot be used (%s), so that SAC learns more slowly. It is compiled when "
        "Plaudit is installed, where there is a C compiler with Python's headers.",
        why,
    )


@functools.cache
def product() -> tuple[int, str | None]:
    """The address of the product of matrices that torch itself calls, BLAS's `sgemm_`, and why there is none."""
    try:
        library = next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"))
        address = ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value or 0
    except (StopIteration, OSError, AttributeError) as error:
        return 0, f"this torch shares no product of matrices: {error!r}"
    return address, None


def lacks() -> str | None:
    """What the kernel cannot work without, and is not there; `None` where all is."""
    return MISSING or product()[1]


class MemberByMember:
    """As `Critics`. Arguments as `quickest_critics`'s."""

    def __init__(
        self, network: Ensemble, training: Training | None = None, beside: MemberByMember | None = None
    ) -> None:
        assert network.weights[-1].shape[-1] == 1
        self.network, self.training = network, training
        self._widths = array("q", [weight.shape[1] for weight in network.weights])
        self._members = array("q", range(network.members))
        layers = zip_longest(network.weights, network.biases, network.scales, network.shifts)
        self._parameters = [None if part is None else part.detach() for layer in layers for part in layer]
        assert all(part.is_contiguous() for part in self._parameters if part is not None)
        self._rooms: dict[int, torch.Tensor] = {} if beside is None else beside._rooms

    def values(self, x: torch.Tensor, chosen: Sequence[int] | None = None) -> torch.Tensor:
        members = self._members if chosen is None else array("q", chosen)
        values = x.new_empty(len(members), len(x))
        self._run(x, members, values=values)
        return values

    def improve(self, x: torch.Tensor, aim: torch.Tensor, inputs: slice | None = None) -> Improved:
        assert self.training is not None
        assert aim.is_contiguous() and aim.shape == (len(x),) and aim.dtype == torch.float32
        optimizer, target, tau = self.training
        moved = _addresses([optimizer.parameters.data, optimizer.first, optimizer.second, target.data])
        pace = [*BETAS, *(1.0 - beta for beta in BETAS), *optimizer.advance(), optimizer.eps, tau]
        told = x.new_empty(len(self._members), 2)
        d_inputs = None if inputs is None else x.new_empty(len(self._members), len(x), _length(inputs, x))
        self._run(x, self._members, aim=aim, told=told, inputs=inputs, d_x=d_inputs, moved=moved, pace=array("f", pace))
        return Improved(told[:, 0], told[:, 1], None if d_inputs is None else d_inputs.sum(0))

    def ascend(self, x: torch.Tensor, by: Literal["min", "mean"], inputs: slice) -> Ascent:
        if by == "mean":
            values = x.new_empty(len(self._members), len(x))
            d_inputs = x.new_empty(*values.shape, _length(inputs, x))
            self._run(x, self._members, values=values, weight=-1.0 / values.numel(), inputs=inputs, d_x=d_inputs)
            return Ascent(values.mean(0), d_inputs.sum(0))
        value, least = self.values(x).min(0)
        d_inputs = x.new_empty(len(x), _length(inputs, x))
        self._run(x, self._members, least=least, weight=-1.0 / len(x), inputs=inputs, d_x=d_inputs)
        return Ascent(value, d_inputs)

    def _run(
        self,
        x: torch.Tensor,
        members: array[int],
        *,
        values: torch.Tensor | None = None,
        aim: torch.Tensor | None = None,
        told: torch.Tensor | None = None,
        least: torch.Tensor | None = None,
        weight: float = 0.0,
        inputs: slice | None = None,
        d_x: torch.Tensor | None = None,
        moved: array[int] | None = None,
        pace: array[float] | None = None,
    ) -> None:
        """Calls the kernel, whose names these are."""
        assert x.is_contiguous() and x.dtype == torch.float32 and x.shape[1] == self._widths[0]
        threads = min(kernel_threads(), len(members))
        first, last, _ = (inputs or slice(0)).indices(x.shape[1])
        _kernels.run(
            product()[0],
            self._widths,
            _addresses(self._parameters),
            members,
            EPSILON,
            x.data_ptr(),
            len(x),
            _at(values),
            _at(aim),
            _at(told),
            _at(least),
            weight,
            first,
            last - first,
            _at(d_x),
            moved,
            pace,
            self._room(len(x), threads).data_ptr(),
            threads,
        )

    def _room(self, rows: int, threads: int) -> torch.Tensor:
        """For what lies between inputs and gradients of one network for each thread: it is kept."""
        size = threads * _kernels.room(self._widths, rows)
        if rows not in self._rooms or len(self._rooms[rows]) < size:
            self._rooms[rows] = torch.empty(size, dtype=torch.float32, device="cpu")
        return self._rooms[rows]


def _at(part: torch.Tensor | None) -> int:
    """Its address; 0 where there is none."""
    return 0 if part is None else part.data_ptr()


def _addresses(parts: Sequence[torch.Tensor | None]) -> array[int]:
    # Asked for at each call: whoever shares a policy with other processes, or copies a learner, moves its memory.
    return array("Q", [_at(part) for part in parts])


def _length(inputs: slice, x: torch.Tensor) -> int:
    return len(range(*inputs.indices(x.shape[1])))

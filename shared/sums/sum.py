"""Declaration of a sum of statistics: what leaves a silo, and what silos get."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Part
from shared.method.parameters import Arrays
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor

BASIS: Part = "basis"
"""Part of the sums that closed forms and training runs use."""
UInt32 = NDArray[np.uint32]
Float64 = NDArray[np.float64]
Shapes = Mapping[str, tuple[int, ...]]
EMPTY_PART_DIGEST = hashlib.sha256(b"nothing to add").hexdigest()
"""Digest that a silo signs whose part is zeros, in place of that of the list or directions summed over."""
FRACTION_BITS = 16
STEP = 2.0**-FRACTION_BITS
LIMIT = 2.0 ** (31 - FRACTION_BITS)  # a sum of this size or more does not fit 32 bits


def keep_all(method: MethodSettings, sums: Arrays) -> Arrays:
    """Returns a sum unchanged, for sums that hide nothing when handed out."""
    del method
    return sums


def one_round(basis: BasisSettings) -> int:
    """Returns 1, for a sum of one round."""
    del basis
    return 1


def no_part(method: MethodSettings) -> Part | None:
    """Returns None, for a sum that needs no other one first."""
    del method
    return None


def describe_sum_alone(basis: BasisSettings) -> str:
    """Describes what all silos learn by a sum without further description."""
    del basis
    return "the sum over all silos"


def describe_rare_pairs(basis: BasisSettings, whose: str) -> str:
    """Describes that rare pairs are left out; nothing where noise hides each user.

    whose: "users" or "visits".
    """
    if basis.epsilon is not None:
        return ""
    return (
        f"; pairs that fewer than {basis.least_pairs} {whose} have are left out, though a silo that lies about its own"
        " counts reads them"
    )


@dataclass(frozen=True)
class SumNoise:
    """Noise on a silo's part of a sum, for each user (`basis.epsilon`).

    tensor: what is noised; one user changes it by a norm of 1 at most, and its entries are multiples of STEP.
    variance: the tensor of the noise's variance, (1,). deviations: (entries, deviation of noise for a norm of 1) ->
    the deviation of each entry.
    """

    tensor: str
    variance: str
    deviations: Callable[[int, float], Float64]


@dataclass(frozen=True)
class Sum:
    """Kind of statistics summed over silos, as both services know it.

    name: value of `basis.kind`, or of `sums.<part>.kind`, that chooses it.
    word: the policy's field that allows it; declaration and ledger name it.
    title: its name, with an article. statistics: what leaves a silo, in words.
    tensors: (settings) -> what a silo sends in a round: U32, added modulo 2^32. SettingsError for impossible sizes.
    own_names: tensors that no other sum has.
    sizes: shapes of a declaration -> the settings that follow from them.
    fraction_bits: of tensors that hold real numbers (`encode_fixed`).
    rounds, sums_needed: rounds of a run, and how many of the last ones stay available.
    hand_out: (settings, sums) -> what silos get, for example without rare counts.
    steady: settings, by dotted names, with which no two sums over the same data may differ.
    noise: tensor that `basis.epsilon` noises, and how much; None: never noised.
    part: part of a federation's work; a federation has one sum a part, in the order of SUMS.
    listed: whether it is over a list of items, which all silos have or have summed.
    reason: what it tells and why it is summed, where a federation's data alone choose it.
    row: meaning of a row of its first array, for the silo's page; "": not shown.
    replaces_basis: whether silos make models of it alone where no basis is summed.
    default_task: task of the federations that make this sum by default, where they share sums; "": none.
    keeps_members: whether the members of a run's first sum must be in all of its sums, as a part hides values in them.
    words: what each tensor is, by name.
    disclosure: (settings of the sum) -> what all silos learn by it, in words.
    base_part: (settings) -> the part whose sums it is counted over, summed before it and the same in all silos.
    """

    name: str
    word: str
    title: str
    statistics: str
    tensors: Callable[[MethodSettings], tuple[Tensor, ...]]
    own_names: frozenset[str]
    sizes: Callable[[BasisSettings, Shapes], Mapping[str, int]]
    fraction_bits: Mapping[str, int] = field(default_factory=dict)
    rounds: Callable[[BasisSettings], int] = one_round
    sums_needed: Callable[[BasisSettings], int] = one_round
    hand_out: Callable[[MethodSettings, Arrays], Arrays] = keep_all
    steady: tuple[str, ...] = ()
    noise: SumNoise | None = None
    part: Part = BASIS
    listed: bool = True
    reason: str = ""
    row: str = "item of the catalogue"
    replaces_basis: bool = False
    default_task: str = ""
    keeps_members: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    disclosure: Callable[[BasisSettings], str] = describe_sum_alone
    base_part: Callable[[MethodSettings], Part | None] = no_part

    def list_tensors(self, method: MethodSettings) -> tuple[Tensor, ...]:
        """Lists the tensors that a silo sends in a round.

        Raises SettingsError for sizes or a noise that it cannot have.
        """
        basis = method.basis
        if basis.epsilon is not None and self.noise is None:
            raise SettingsError(f"basis.epsilon: expected none with basis.kind = {self.name!r}, got {basis.epsilon:g}")
        return self.tensors(method)


def require_catalogue(method: MethodSettings) -> int:
    """Returns the size of the shared catalogue; raises SettingsError for none."""
    if method.catalogue == 0:
        raise SettingsError("catalogue: expected the size of a shared item catalogue (basis.kind), got 0")
    return method.catalogue


def encode_fixed(values: Float64, clients: int, name: str) -> UInt32:
    """Encodes values as multiples of 2^-16, modulo 2^32.

    Error of each: at most 2^-17. Raises ProtocolError, without the values, where `clients` of that size could
    overflow a sum, or where one is not finite. name: of the tensor, for the error.
    """
    bound = LIMIT / max(1, clients)
    if outside := int(np.count_nonzero(~(np.abs(values) < bound))):
        raise ProtocolError(f"{name}: expected values below {bound:g} in size, got {outside} others")
    return np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).astype(np.uint32)


def decode_fixed(sums: UInt32) -> Float64:
    """Decodes a sum to real numbers."""
    return np.asarray(sums).view(np.int32).astype(np.float64) * STEP

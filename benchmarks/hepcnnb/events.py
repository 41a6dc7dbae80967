"""Collision events as the detector sees them: jets drawn, then the calorimeter towers and tracks that they leave.

Background is QCD di-jets in slices of transverse momentum, signal a pair of gluinos that decay into many jets
(GG_RPV10_1400_850). Processes, slices' numbers, image axes and channels are published; spectra, multiplicities and
shapes are estimates, chosen to give the densities of the calorimeter images (see `hits`).

Everything is drawn from words that are a hash of (seed, event id, counter) and turned into values by tables and by
single additions and multiplications, so that an event is the same alone and in any company, on any machine.
"""

import math
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

TURN = 1 << 16  # both axes are cut into so many parts: phi the turn, eta [-5, 5]
ETA_RANGE = 10.0
JETS = 10  # most of an event
GLUINO, NEUTRALINO = 1400.0, 850.0  # GeV
FIRST_SLICE = 3
# Transverse momenta, GeV, that bound the slices 3..11: an estimate after the jet slices of 13 TeV simulations.
EDGES = (160, 400, 800, 1300, 1800, 2500, 3200, 3900, 4600, 5300)
SLICES = len(EDGES) - 1
FALL = 5  # the integral spectrum falls with this power: an estimate
CROSS_SECTION = 5.0e5  # pb, of the lowest slice and all above: an estimate
SIGNAL_CROSS_SECTION = 0.0253  # pb, of a gluino pair at 1400 GeV and 13 TeV: an estimate
BEAM = 6500.0  # GeV: the most that one tower can hold; it normalises the energies
MOST_TRACKS = 32  # in one pixel; it normalises the counts: an estimate
TRACKER = round(2.5 / ETA_RANGE * TURN)  # tracks are seen up to |eta| = 2.5
# The "standard regions": an estimate after searches for many jets.
REGION_JETS, REGION_JET, REGION_SUM = 4, np.float32(50), np.float32(1500)  # jets above GeV, and GeV of their sum

_PHI, _ETA = np.float32(TURN / (2 * math.pi)), np.float32(TURN / ETA_RANGE)  # parts of a radian, of a unit of eta
_STEP = np.uint64(0x9E3779B97F4A7C15)
_WORDS = 16  # of an event, 4 draws each
# Momenta of the background's jets as parts of the first: an estimate.
_LEAST, _SPAN = np.array([1, 0.75, 0.03, 0.03], np.float32), np.array([0, 0.25, 0.2, 0.12], np.float32)
_COSH = 6  # bits of eta that its table leaves out


class Events(Struct, frozen=True):
    """Drawn events; arrays are [events] or [events, JETS]; momenta in GeV, directions in parts of TURN."""

    keys: Words
    label: npt.NDArray[np.int32]
    slice: npt.NDArray[np.int32]  # 0 for signal
    momentum: Floats  # 0 where there is no jet
    phi: Integers
    eta: Integers  # 0 is eta = -5
    towers: Integers
    tracks: Integers


class Hits(Struct, frozen=True):
    """What fills the images: indices into the flat [events, 3, side, side] pixels, and what is added there."""

    at: Integers
    values: Floats


def draw(seed: int, ids: Integers) -> Events:
    """The events of these ids: labels evenly 0 and 1, slices evenly 3..11 in the background."""
    keys = _keys(seed, ids)
    draws = _quarters(_mix_words(keys[:, None] + _STEP * np.arange(1, 1 + _WORDS, dtype=np.uint64)))
    signal = draws[:, 0] < TURN // 2
    number = draws[:, 1] * SLICES >> 16
    normal, exponential = _normal(), _exponential()
    # Four background jets: two back to back, two radiated. Signal: six to ten of the same kind.
    lead = _spectra()[number, draws[:, 2] >> 4]
    ratio = _LEAST + _SPAN * _share(draws[:, 3:7])
    momentum = np.float32(60) + np.float32(190) * exponential[draws[:, 3 : 3 + JETS]]
    momentum[np.arange(JETS) >= (6 + (draws[:, 2] * 5 >> 16))[:, None]] = 0
    background = ~signal
    momentum[background] = 0
    momentum[background, : _LEAST.size] = (lead[:, None] * ratio)[background]
    phi = draws[:, 14 : 14 + JETS].copy()
    opposite = phi[:, 0] + TURN // 2 + np.rint(normal[phi[:, 1]] * np.float32(0.08) * _PHI).astype(np.int64)
    phi[background, 1] = opposite[background]
    # Hard jets are central: the beams have no energy for others.
    spread = np.float32(1.1) * (1 - momentum / np.float32(7000)) * normal[draws[:, 24 : 24 + JETS]]
    eta = TURN // 2 + np.rint(spread * _ETA).astype(np.int64)
    return Events(
        keys=keys,
        label=signal.astype("<i4"),
        slice=np.where(signal, 0, FIRST_SLICE + number).astype("<i4"),
        momentum=momentum,
        phi=phi & TURN - 1,
        eta=np.clip(eta, 0, TURN - 1),
        towers=np.where(signal, 400, 300) + ((draws[:, 34] + draws[:, 35]) * 300 >> 17),
        tracks=np.where(signal, 100, 60) + ((draws[:, 36] + draws[:, 37]) * 150 >> 17),
    )


def labels(seed: int, ids: Integers) -> Integers:
    """The labels of these events alone."""
    return (_quarters(_mix_words(_keys(seed, ids) + _STEP))[:, 0] < TURN // 2).astype(np.int64)


def _keys(seed: int, ids: Integers) -> Words:
    return _mix_words(np.uint64(seed << 32) + ids.astype(np.uint64))


def scalars(events: Events, ids: Integers) -> dict[str, npt.NDArray[Any]]:
    """The eight values beside each image, by the published names."""
    signal = events.label.astype("<f4")
    weight = _cross_sections()[np.where(events.label, SLICES, events.slice - FIRST_SLICE)]
    counted = np.where(events.momentum > REGION_JET, events.momentum, np.float32(0))
    region = ((counted > 0).sum(axis=1) >= REGION_JETS) & (counted.sum(axis=1) > REGION_SUM)
    return {
        "label": events.label,
        "weight": weight,
        "normweight": weight / _cross_sections().max(),
        "psr": region.astype("<i4"),
        "mg": signal * np.float32(GLUINO),
        "mn": signal * np.float32(NEUTRALINO),
        "jz": events.slice,
        "eid": ids.astype("<i4"),
    }


def hits(events: Events, side: int) -> Hits:
    """Towers and tracks of the images, side x side pixels each: axis 2 phi, axis 3 eta.

    300 to 700 towers and 60 to 250 tracks an event, which leaves 0.9 % and 0.3 % of the pixels filled: estimates.
    At less than the published 224 pixels a side there are fewer in proportion to the side.
    """
    shrink = max(1, 224 // side)
    momentum = events.momentum
    root = np.sqrt(momentum)
    soft = np.where(events.label, np.float32(0.3), np.float32(0.45))[:, None]
    shares = root / root.sum(axis=1, keepdims=True) * (1 - soft)
    towers = events.towers // shrink
    # A jet's momentum is spread over the towers that it can expect; soft ones have 1 GeV on average.
    each = np.ones((len(momentum), JETS + 1), np.float32)
    each[:, :JETS] = momentum / np.maximum(shares * towers[:, None].astype(np.float32), np.float32(1))
    event, jet, phi, eta, words, hardness = _particles(events, shares, towers, np.uint64(0))
    energy = each[event, jet] * hardness * hardness / 2 * _cosh()[eta >> _COSH] / np.float32(BEAM)
    part = _share(_quarters(_mix_words(words))[:, 0])
    part = part * part * (3 - 2 * part)  # electromagnetic: mostly little or nearly all
    pixels = side * side
    at = event * (3 * pixels) + (phi * side >> 16) * side + (eta * side >> 16)
    event, _, phi, eta, words, _ = _particles(events, shares, events.tracks // shrink, _STEP << np.uint64(1))
    width = 2 * TRACKER
    eta = np.where(np.abs(eta - TURN // 2) < TRACKER, eta, TURN // 2 - TRACKER + (_quarters(words)[:, 2] * width >> 16))
    tracks_at = event * (3 * pixels) + 2 * pixels + (phi * side >> 16) * side + (eta * side >> 16)
    return Hits(
        at=np.concatenate([at, at + pixels, tracks_at]),
        values=np.concatenate([energy, energy * part, np.full(event.size, 1 / MOST_TRACKS, np.float32)]),
    )


def _particles(
    events: Events, shares: Floats, counts: Integers, stream: np.uint64
) -> tuple[Integers, Integers, Integers, Integers, Words, Floats]:
    """`counts` particles an event: (event, jet or JETS for none, phi, eta, word, hardness ~ exp(1)), flat."""
    event = np.repeat(np.arange(counts.size), counts)
    slot = np.arange(event.size) - np.repeat(np.cumsum(counts) - counts, counts)
    # Words with 2^32 + slot for counter: apart from those of `draw`, and from other streams'.
    words = _mix_words(events.keys[event] + _STEP * (slot.astype(np.uint64) + np.uint64(1 << 32)) + stream)
    quarters = _quarters(words)
    edges = (np.cumsum(shares, axis=1) * TURN).astype(np.int64)
    jet = (quarters[:, 0, None] >= edges[event]).sum(axis=1)
    hardness = _exponential()[quarters[:, 3]]
    momentum = events.momentum
    radius = np.float32(0.08) + 40 / (momentum + 100)  # of a jet: an estimate
    none = jet == JETS
    safe = np.where(none, 0, jet)
    distance = radius[event, safe] * (np.float32(1.3) - _share(quarters[:, 3]))  # the hardest lie innermost
    normal = _normal()
    phi = events.phi[event, safe] + np.rint(normal[quarters[:, 1]] * distance * _PHI).astype(np.int64)
    eta = events.eta[event, safe] + np.rint(normal[quarters[:, 2]] * distance * _ETA).astype(np.int64)
    phi = np.where(none, quarters[:, 1], phi) & TURN - 1
    eta = np.clip(np.where(none, quarters[:, 2], eta), 0, TURN - 1)
    return event, jet, phi, eta, words, hardness


def _mix_words(words: Words) -> Words:
    """A bijection of 64-bit words that leaves no pattern: the finisher of SplitMix64 (Steele et al., 2014)."""
    words = words ^ words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _quarters(words: Words) -> Integers:
    """[..., n] words -> [..., 4 n] draws in [0, TURN); from one axis [n] to [n, 4]."""
    parts = words.astype("<u8", copy=False).view("<u2").astype(np.int64)
    return parts.reshape(-1, 4) if words.ndim == 1 else parts


def _share(draws: Integers) -> Floats:
    return draws.astype(np.float32) / np.float32(TURN)


@cache
def _normal() -> Floats:
    """Quantiles of the standard normal distribution at the middle of each part of TURN."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((part + 0.5) / TURN) for part in range(TURN)], np.float32)


@cache
def _exponential() -> Floats:
    return np.array([-math.log(1 - (part + 0.5) / TURN) for part in range(TURN)], np.float32)


@cache
def _cosh() -> Floats:
    parts = TURN >> _COSH
    return np.array([math.cosh(((part + 0.5) / parts - 0.5) * ETA_RANGE) for part in range(parts)], np.float32)


@cache
def _spectra() -> Floats:
    """[slice, 4096] quantiles of the leading jet's transverse momentum."""
    shares = (np.arange(4096) + 0.5) / 4096
    rows = []
    for low, high in pairwise(EDGES):
        ends = float(low) ** -FALL, float(high) ** -FALL
        rows.append([(ends[0] + (ends[1] - ends[0]) * share) ** (-1 / FALL) for share in shares.tolist()])
    return np.array(rows, np.float32)


@cache
def _cross_sections() -> Floats:
    """pb of each slice, then of the signal."""
    above = [CROSS_SECTION * (edge / EDGES[0]) ** -FALL for edge in EDGES]
    return np.array([*(a - b for a, b in pairwise(above)), SIGNAL_CROSS_SECTION], np.float32)

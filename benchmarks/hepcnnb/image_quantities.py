"""What images of energies are compared by: energies, pixels and jets, their distances, and a picture of some images.

Source: sparticlesteve/atlas-gan @dde093a, atlasgan/reco.py (jets), notebooks/GANAnalysis.ipynb (quantities). Images
are [n, SIDE, SIDE] of phi and eta, in units of 4 TeV.
"""

import io
import math
import os
import sys
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.metrics import Counts
from dlio_bench.wrapping import printable

Images = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

SIDE = 64
GEV = 1 / 4000  # a GeV: published images hold MeV / 4e6
LEAST = 0.5 * GEV  # of a pixel: gan.py, Threshold(500 / 4e6)
ETA = 2.5
RADIUS, JET_MOMENTUM, JET_ETA = 1.0, 200.0, 2.0  # of anti-kt jets; GeV
PIXEL_MOMENTUM = 0.1  # GeV, above which a pixel is clustered

ENERGY, PIXELS = "energy of an image (GeV)", "pixels above 0.5 GeV"
JET_PT, JETS, MASSES = "jet p_T (GeV)", "jets of an image", "sum of an image's jet masses (GeV)"
JETS_ETA, JETS_PHI = "jet eta", "jet phi"
COMBINED = (JET_PT, JETS, MASSES)
NO_FASTJET = "no jets: fastjet is not installed (pip install 'dlio-bench[physics]')"
LONGEST = 300  # letters of why fastjet cannot be imported

# Bins of the histograms that passes are scored by: energies of images and of pixels in GeV.
_ENERGIES, _PIXEL_ENERGIES = np.geomspace(1, 2e7, 400), np.geomspace(0.5, 5e3, 400)
_MOST_PIXELS = SIDE * SIDE
_PARTS = {"ks_energy": len(_ENERGIES) + 1, "ks_pixels": _MOST_PIXELS + 1, "ks_pixel_energy": len(_PIXEL_ENERGIES) + 1}

SHOWN, ENLARGED, GAP = 8, 2, 4  # images in a row of a picture; its pixels for one of theirs, and between images
_BRIGHTEST = 500.0  # GeV


def image_counts(outputs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Counts:
    """Of made images and held-out ones, both [n, ...]: histograms of energies, filled pixels and their energies."""
    return np.concatenate([_histograms(images.reshape(len(images), -1)) for images in (outputs, labels)])


def _histograms(flat: npt.NDArray[Any]) -> Counts:
    filled = flat > LEAST
    energies = flat.sum(axis=1, dtype=np.float64) / GEV
    bins = (
        np.searchsorted(_ENERGIES, energies),
        np.minimum(filled.sum(axis=1), _MOST_PIXELS),
        np.searchsorted(_PIXEL_ENERGIES, flat[filled] / GEV),
    )
    counts = [np.bincount(of, minlength=size) for of, size in zip(bins, _PARTS.values(), strict=True)]
    return np.concatenate(counts).astype(np.float64)


def image_score(sums: Counts) -> dict[str, float]:
    """The two-sample Kolmogorov-Smirnov distance of each histogram: 1 where only one side has any, 0 where none has."""
    edges = np.cumsum([0, *_PARTS.values()])
    made, held_out = np.split(sums, 2)
    return {name: _distance(made[a:b], held_out[a:b]) for name, (a, b) in zip(_PARTS, pairwise(edges), strict=True)}


def _distance(some: Counts, others: Counts) -> float:
    if not some.any() or not others.any():
        return float(some.any() != others.any())
    return float(np.abs(np.cumsum(some) / some.sum() - np.cumsum(others) / others.sum()).max())


def missing() -> str | None:
    """Why there can be no quantities of jets here; None where there can."""
    try:
        _fastjet()
    except ModuleNotFoundError as error:
        return NO_FASTJET if error.name == "fastjet" else _import_failure(error)
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises, the rest is compared
        return _import_failure(error)
    return None


def _import_failure(error: Exception) -> str:
    return printable(f"no jets: fastjet cannot be imported ({type(error).__name__}: {error})"[:LONGEST])


def quantities_of(images: Images, with_jets: bool) -> dict[str, Values]:
    """Values by quantity; those of jets need fastjet."""
    values = {
        ENERGY: images.sum(axis=(1, 2), dtype=np.float64) / GEV,
        PIXELS: np.count_nonzero(images > LEAST, axis=(1, 2)).astype(np.float64),
    }
    return values | _of_jets([jets(image) for image in images]) if with_jets else values


def _of_jets(events: list[list[Any]]) -> dict[str, Values]:
    """As published, the quantities of images are those of images with a jet."""
    every = [jet for event in events for jet in event]
    some = [event for event in events if event]
    return {
        JET_PT: np.array([jet.pt() for jet in every], np.float64),
        JETS: np.array([len(event) for event in some], np.float64),
        MASSES: np.array([sum(jet.m() for jet in event) for event in some], np.float64),
        JETS_ETA: np.array([jet.eta() for jet in every], np.float64),
        JETS_PHI: np.array([jet.phi_std() for jet in every], np.float64),
    }


def jets(image: Images) -> list[Any]:
    """The anti-kt jets of an image [SIDE, SIDE], each a fastjet.PseudoJet in GeV; its pixels are massless particles."""
    fastjet, definition = _fastjet()
    x, y, z, cosh = _directions()
    momenta = image.astype(np.float64) / GEV / cosh
    row, column = np.nonzero(momenta > PIXEL_MOMENTUM)
    pt = momenta[row, column]
    energy = pt * cosh[column]
    components = (pt * x[row], pt * y[row], pt * z[column], energy)
    particles = [fastjet.PseudoJet(*four) for four in zip(*(part.tolist() for part in components), strict=True)]
    clustered = fastjet.ClusterSequence(particles, definition).inclusive_jets(JET_MOMENTUM)
    return [jet for jet in clustered if abs(jet.eta()) < JET_ETA]


@cache
def _directions() -> tuple[Values, Values, Values, Values]:
    """cos and sin of phi by row; sinh and cosh of eta by column: of the middles of pixels."""
    middles = (np.arange(SIDE) + 0.5) / SIDE * 2 - 1
    phi, eta = math.pi * middles, ETA * middles
    return np.cos(phi), np.sin(phi), np.sinh(eta), np.cosh(eta)


@cache
def _fastjet() -> tuple[Any, Any]:
    """The library and the definition of jets. The library prints a banner to the output when it first clusters."""
    import fastjet

    definition = fastjet.JetDefinition(fastjet.antikt_algorithm, RADIUS)
    sys.stdout.flush()
    output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        fastjet.ClusterSequence([fastjet.PseudoJet(1.0, 0.0, 0.0, 1.0)], definition).inclusive_jets()
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)
    return fastjet, definition


def picture(made: Images, held_out: Images) -> bytes:
    """A PNG file: SHOWN made images in the upper row, as many held-out ones in the lower; brightness is the logarithm
    of the energy, up to _BRIGHTEST.
    """
    from PIL import Image

    side = SIDE * ENLARGED + GAP
    sheet = np.full((2 * side + GAP, SHOWN * side + GAP), 255, np.uint8)
    for row, images in enumerate((made, held_out)):
        for column, image in enumerate(images[:SHOWN]):
            light = np.log1p(np.minimum(image / GEV, _BRIGHTEST)) / math.log1p(_BRIGHTEST)
            pixels = np.rint(light * 255).astype(np.uint8).repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
            top, left = GAP + row * side, GAP + column * side
            sheet[top : top + SIDE * ENLARGED, left : left + SIDE * ENLARGED] = pixels
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, "PNG", optimize=True)
    return content.getvalue()

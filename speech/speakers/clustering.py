"""Cluster voices into the speakers of a recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .local import SpeakerStretch
from .model import Count, Floats
from .tuning import TUNING

Labels = NDArray[np.int64]


def speakers(found: Sequence[SpeakerStretch], count: Count) -> tuple[Labels, Floats]:
    """Return the speaker of each stretch, from 0, and the speakers' mean vectors [speakers, dimensions]."""
    vectors = np.array([one.vector for one in found])
    clear = np.array([one.clear for one in found])
    known = np.flatnonzero(clear >= min(TUNING.steady, clear.max()))
    if len(known) > TUNING.most_vectors:
        known = np.sort(known[np.argsort(-clear[known], kind="stable")[: TUNING.most_vectors]])
    weights = np.maximum(clear[known], 0.01)
    means = _means(vectors[known], weights, _clusters(vectors[known], weights, count))
    labels = (vectors @ means.T).argmax(1)
    present = np.unique(labels)  # nobody may be nearest to a mean
    return np.searchsorted(present, labels), means[present]


def _clusters(vectors: Floats, weights: Floats, count: Count) -> Labels:
    """Cluster voices by the cosine of their members (average linkage), without clusters that have too little
    speech.
    """
    if len(vectors) == 1:
        return np.zeros(1, np.int64)
    from scipy.cluster import hierarchy  # which deployments without a speaker model never load

    tree = hierarchy.linkage(vectors, "average", "cosine")
    labels = _without_small(hierarchy.fcluster(tree, 1 - count.near, "distance"), vectors, weights, count)
    labels = _merged(labels, vectors, weights)
    found = len(np.unique(labels))
    wanted = min(max(found, count.least), count.most or found)
    return labels if wanted == found else _cut(tree, vectors, weights, count, wanted)


def _cut(tree: Floats, vectors: Floats, weights: Floats, count: Count, wanted: int) -> Labels:
    """Return so many clusters, as far as the tree has them, none of them too small where possible."""
    from scipy.cluster.hierarchy import fcluster

    for cuts in range(wanted, min(len(vectors), wanted + 50) + 1):
        labels = fcluster(tree, cuts, "maxclust")
        large = _without_small(labels, vectors, weights, count)
        if len(np.unique(large)) >= wanted:
            return large if len(np.unique(large)) == wanted else labels
    plain: Labels = fcluster(tree, wanted, "maxclust")
    return plain


def _without_small(labels: Labels, vectors: Floats, weights: Floats, count: Count) -> Labels:
    """Assign the members of clusters with little speech to the nearest other cluster."""
    names, labels = np.unique(labels, return_inverse=True)
    spoken = np.bincount(labels, weights, len(names))
    least = max(count.speech, TUNING.least_share * spoken.sum())
    large = np.flatnonzero(spoken >= min(least, spoken.max()))
    means = _means(vectors, weights, labels)[large]
    lost = ~np.isin(labels, large)
    labels[lost] = large[(vectors[lost] @ means.T).argmax(1)]
    return np.searchsorted(large, labels)


def _merged(labels: Labels, vectors: Floats, weights: Floats) -> Labels:
    """Merge clusters whose means are the same voice, nearest first."""
    while len(means := _means(vectors, weights, labels)) > 1:
        near = means @ means.T - 2 * np.eye(len(means), dtype=np.float32)
        first, second = sorted(np.unravel_index(near.argmax(), near.shape))
        if near[first, second] < TUNING.same_voice:
            break
        labels = np.where(labels == second, first, labels)
        labels = np.unique(labels, return_inverse=True)[1]
    return labels


def _means(vectors: Floats, weights: Floats, labels: Labels) -> Floats:
    """Return clusters' mean vectors [clusters, dimensions] of length 1, each voice weighted by its seconds of
    clear speech.
    """
    sums = np.zeros((labels.max() + 1, vectors.shape[1]), np.float32)
    np.add.at(sums, labels, vectors * weights[:, None])
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    return np.asarray(sums / lengths, np.float32)

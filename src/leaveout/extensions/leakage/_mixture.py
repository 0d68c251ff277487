"""Records of a mixture of clusters, some of them filed under wrong ones.

Eq. 1 of the source document:

    φ_j ~ H, j = 1 … k;    c_i ~ Categorical(π);    (x_i, y_i) ~ G(φ_{c_i}), i = 1 … n.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.random import Generator, default_rng
from numpy.typing import ArrayLike

from ...developer import FloatArray, Lines, PrintedResult, Rng, conventional, count, record

ClusterLaw = Callable[[Generator, int], FloatArray]
RecordLaw = Callable[[Generator, FloatArray], tuple[FloatArray, FloatArray]]


@record
class Mixture(PrintedResult):
    """Records of clusters, and the clusters that they are filed under.

    Attributes
    ----------
    X : ndarray, `[records, features]`
        The features.
    y : ndarray, `[records]`
        The responses.
    clusters : ndarray of int, `[records]`
        The true clusters c.
    filed : ndarray of int, `[records]`
        The clusters ĉ under which the records are filed.

    See Also
    --------
    mixture : Draw one.

    Examples
    --------
    >>> import leaveout as lo
    >>> data = lo.leakage.mixture(10, 200, mislinked=0.0)
    >>> data.precision, data.recall
    (1.0, 1.0)
    """

    X: Float[ndarray, "records features"]
    y: Float[ndarray, " records"]
    clusters: Int[ndarray, " records"]
    filed: Int[ndarray, " records"]

    @property
    def precision(self) -> float:
        """The share of pairs that are filed together which belong together; NaN without any."""
        return self._share_of_both(num_pairs(self.filed))

    @property
    def recall(self) -> float:
        """The share of pairs that belong together which are filed together; NaN without any."""
        return self._share_of_both(num_pairs(self.clusters))

    def _share_of_both(self, count: int) -> float:
        if not count:
            return np.nan
        return num_pairs(self.clusters * (self.filed.max() + 1) + self.filed) / count

    def _facts(self) -> Lines:
        wrong = np.mean(self.clusters != self.filed)
        return [
            ("records", f"{len(self.y)} of {len(np.unique(self.clusters))} clusters"),
            (
                "filed",
                f"{wrong:.3g} under a wrong cluster; pairs: precision {self.precision:.3g}, recall {self.recall:.3g}",
            ),
        ]


def num_pairs(labels: ArrayLike) -> int:
    """Count the pairs of records that share a label."""
    _, sizes = np.unique(labels, return_counts=True)
    return int(np.sum(sizes * (sizes - 1) // 2))


def normal_clusters(random: Generator, num_clusters: int) -> FloatArray:
    """Draw the means of four features and of y, normal with standard deviations of 1.5 and 1."""
    return random.normal(size=(num_clusters, 5)) * [1.5, 1.5, 1.5, 1.5, 1.0]


def normal_records(random: Generator, means: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Draw records about their means, with standard deviations of 0.7 (X) and 0.3 (y)."""
    records = means + random.normal(size=means.shape) * [0.7, 0.7, 0.7, 0.7, 0.3]
    return records[:, :-1], records[:, -1]


@conventional
def mixture(
    num_clusters: int,
    num_records: int,
    *,
    mislinked: float = 0.05,
    shares: ArrayLike | None = None,
    cluster_law: ClusterLaw = normal_clusters,
    record_law: RecordLaw = normal_records,
    rng: Rng = 0,
) -> Mixture:
    """Draw records of a mixture of clusters, each filed under a wrong one with some probability.

    φ_j ~ H for every cluster, c_i ~ Categorical(π) and (x_i, y_i) ~ G(φ_{c_i}) for every record.

    Parameters
    ----------
    num_clusters, num_records : int
        The numbers k of clusters and n of records.
    mislinked : float, default 0.05
        The probability that a record is filed under another cluster, each with the same
        probability.
    shares : array_like, `[clusters]`, optional
        The probabilities π; equal by default.
    cluster_law : callable, optional
        H: a function of a generator and the number of clusters that returns φ, `[clusters, ...]`.
        By default the means of four features and of y, normal.
    record_law : callable, optional
        G: a function of a generator and the φ of every record that returns X and y. By default
        normal about φ, so that y depends on x only through the cluster.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.

    Returns
    -------
    Mixture
        The records, their clusters, and the clusters as filed.

    Raises
    ------
    ValueError
        If a number is too small, `mislinked` is no probability below 1, or `shares` are no
        probabilities of the clusters.

    References
    ----------
    M. Barnes, A. Dubrawski, The Binomial Block Bootstrap Estimator for Evaluating Loss on Dependent
    Clusters, Eq. 1.

    Examples
    --------
    >>> import leaveout as lo
    >>> print(lo.leakage.mixture(40, 1000, mislinked=0.05))
    records         1000 of 40 clusters
    filed           0.05 under a wrong cluster; pairs: precision 0.906, recall 0.899
    """
    k = count("mixture: num_clusters", num_clusters, 2)
    n = count("mixture: num_records", num_records, 2)
    if not 0 <= mislinked < 1:
        raise ValueError(f"mixture: mislinked must lie in [0, 1); got {mislinked!r}.")
    pi = np.full(k, 1 / k)
    if shares is not None:
        pi = np.asarray(shares, float)
    if pi.shape != (k,) or not (pi >= 0).all() or abs(pi.sum() - 1) > 1e-8:
        raise ValueError(
            f"mixture: shares must be {k} probabilities that sum to 1, one for each cluster; got {shares!r}."
        )
    random = default_rng(rng)
    phi = cluster_law(random, k)
    clusters = random.choice(k, n, p=pi)
    X, y = record_law(random, np.asarray(phi)[clusters])
    is_wrong = random.random(n) < mislinked
    others = (clusters + random.integers(1, k, n)) % k
    return Mixture(
        np.asarray(X, float), np.asarray(y), clusters, np.where(is_wrong, others, clusters)
    )

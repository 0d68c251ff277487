"""F to second order about θ̂, which every refit starts from: its factor and coordinates, and what
units add to it.
"""

from dataclasses import replace

import numpy as np
import scipy
from jaxtyping import Float

from .._runtime import Module, NumpyArray, PyTree, UnitVectors, cached_on, float64, static
from ..linalg import Predictors, weight_terms
from ..objectives import AbstractObjective, Matrix, Vector, function, influence, leaves_of
from .hessian_products import (
    FINE,
    Coordinates,
    DeflationPreconditioner,
    Scaling,
    Vectors,
    learn,
    solve_once,
)
from .newton import Flat


class LocalQuadratic(Module):
    """F to second order about θ̂, with coordinates in which its Hessian H is the identity.

    If H is too large to be formed, `factor` is None, `whitener` is a diagonal, and every solve is
    made by conjugate gradients on products with H.

    Attributes
    ----------
    objective : AbstractObjective
        The model with its data.
    theta : pytree of arrays
        θ̂, unconstrained.
    factor : array of float, shape (params, params), or None
        Lower triangular L with L Lᵀ = H + Nᵀ N, N the null space.
    whitener : array of float, shape (params, params), or Scaling
        L⁻¹, or a scaling that makes H about the identity.
    null_space : array of float, shape (flat, params)
        Rows N; displacements d keep N d = 0, off the directions in which F is flat.
    damping : float
        What the factor has on the diagonal besides, as of `anchor`.
    """

    objective: AbstractObjective
    theta: PyTree
    factor: Matrix | None
    whitener: Matrix | Scaling
    null_space: Flat
    damping: float = static(default=0.0)

    @property
    def vector(self) -> Vector:
        """θ̂ as one vector."""
        return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves_of(self.theta)])

    def at(self, u: Vectors) -> Vectors:
        """Raveled θ at whitened displacements u."""
        return self.vector + self.unwhiten(u)

    @property
    def root(self) -> Matrix:
        """L⁻¹, where H = L Lᵀ is formed."""
        assert not isinstance(self.whitener, Scaling)
        return self.whitener

    @property
    def scales(self) -> Vector:
        """√H_jj with NᵀN in H, where H is formed."""
        assert self.factor is not None
        return np.linalg.norm(self.factor, axis=1)

    @property
    def coordinates(self) -> Coordinates:
        """Object that whitens: the quadratic itself if H is formed, else its scaling."""
        if isinstance(self.whitener, Scaling):
            return self.whitener
        return self

    @property
    def scaling(self) -> Scaling:
        """Scaling that whitens where H is not formed."""
        assert isinstance(self.whitener, Scaling)
        return self.whitener

    @property
    @cached_on
    def predictor_data(self) -> Predictors | None:
        """The model as data, if it is a convex loss of linear predictors plus a quadratic; else
        None.
        """
        return self.objective.predictors

    @property
    @cached_on
    def predictors(self) -> Predictors | None:
        """The model as data with a dense penalty, if H is formed; else None."""
        if self.factor is None:
            return None
        model = self.predictor_data
        if model is None or isinstance(model.penalty, NumpyArray):
            return model
        return replace(model, penalty=model.penalty.toarray())

    @float64
    def solve(self, vector: Float[NumpyArray, "params ..."]) -> Float[NumpyArray, "params ..."]:
        """Compute `H⁻¹ vector`, in its shape, as `Fit.solve`."""
        if self.factor is not None:
            return scipy.linalg.cho_solve((self.factor, True), vector) - self.flat @ (
                self.flat.T @ vector
            )
        columns = np.asarray(vector, float).reshape(self.vector.size, -1).T
        points = np.broadcast_to(self.vector, columns.shape)
        lanes = np.zeros(len(columns), int)
        u = solve_once(
            function(self.objective, self.theta).of,
            self.coordinates,
            self.null_space,
            points,
            self.whiten(columns),
            lanes,
            FINE,
            self.learned_inverse,
        )
        return self.unwhiten(u).T.reshape(np.shape(vector))

    @property
    @cached_on
    def learned_inverse(self) -> DeflationPreconditioner:
        """Approximate inverse that is learnt from solves with H, if H is not formed."""
        return learn(
            function(self.objective, self.theta), self.scaling, self.null_space, self.vector
        )

    @property
    @cached_on
    def flat(self) -> Float[NumpyArray, "params flat"]:
        """Directions in which F never changes, scaled so that `H⁻¹` is the inverse of `factor` less
        their outer products.
        """
        assert self.factor is not None
        return scipy.linalg.cho_solve((self.factor, True), self.null_space.T)

    def whiten(self, gradient: Vectors) -> Vectors:
        """Convert gradients to the coordinates u = Lᵀ(θ − θ̂): `L⁻¹ g`, H being about L Lᵀ."""
        if isinstance(self.whitener, Scaling):
            return self.whitener.whiten(gradient)
        return gradient @ self.whitener.T

    def raw(self, whitened: Vectors) -> Vectors:
        """Convert gradients in the coordinates u to gradients in θ."""
        if isinstance(self.whitener, Scaling):
            return self.whitener.raw(whitened)
        assert self.factor is not None
        return whitened @ self.factor.T

    def unwhiten(self, u: Vectors) -> Vectors:
        """Convert coordinates u to displacements θ − θ̂."""
        if not isinstance(self.whitener, Scaling):
            return u @ self.whitener
        displacement = self.whitener.unwhiten(u)
        if not len(self.null_space):
            return displacement
        flat = self.null_space / np.linalg.norm(self.null_space[0])
        # these coordinates contain flat directions
        return displacement - (displacement @ flat.T) @ flat

    def back(self, displacement: Vectors) -> Vectors:
        """Convert displacements θ − θ̂ to coordinates u."""
        if isinstance(self.whitener, Scaling):
            return self.whitener.back(displacement)
        assert self.factor is not None
        return displacement @ self.factor

    @property
    @cached_on
    def influence(self) -> UnitVectors:
        """Whitened derivative `L⁻¹ ∂²F/∂θ∂w_n` of every unit.

        The infinitesimal jackknife moves θ̂ by minus it times δ, whitened.
        """
        model = self.predictors
        if model is None or not model.separate:
            return influence(self.objective, self.theta, self.root)
        n = self.objective.num_units
        weight = model.full_weights[0][:n]
        eta = model.unit_predictors(np.arange(n)[None], self.vector[None])[0]
        slope = weight_terms(weight, model.unit_loss.derivatives(eta, model.y, (1,))[0])
        rows = model.design.whiten(np.arange(n), self.root)
        return np.einsum("nk,nkp->np", slope.reshape(n, -1), rows.reshape(n, -1, len(self.root)))

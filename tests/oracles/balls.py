"""Refits of linear predictors in 300 bits, by Newton's method, from nothing of the library. Numbers
are midpoints of balls.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

Array = np.ndarray
BITS = 300
SLOPES: dict[str, Callable[[arb, arb], tuple[arb, arb]]] = {  # ℓ′ and ℓ″
    "squared": lambda eta, y: (eta - y, arb(1)),
    "logistic": lambda eta, y: (1 / (1 + (-eta).exp()) - y, 1 / (2 + eta.exp() + (-eta).exp())),
    "poisson": lambda eta, y: (eta.exp() - y, eta.exp()),
    "pseudo-huber": lambda eta, y: (
        (eta - y) / (1 + (eta - y) ** 2).sqrt(),
        (1 + (eta - y) ** 2) ** arb(-1.5),
    ),
}


def matrix(numbers: Any) -> arb_mat:
    return arb_mat([[arb(float(value)) for value in row] for row in numbers])


def column(numbers: Any) -> arb_mat:
    return matrix(np.reshape(numbers, (-1, 1)))


class Refits:
    """F(θ, w) = Σ w_i ℓ(x_iᵀθ + o_i, y_i) + ½ θᵀPθ of some data.

    Each refit starts where it is said to be.
    """

    def __init__(self, X: Array, y: Array, loss: str, penalty: Array, offset: Any = 0.0):
        ctx.prec = BITS
        self.X, self.P, self.slopes = matrix(X), matrix(penalty), SLOPES[loss]
        self.y, self.offset = (
            [arb(float(v)) for v in np.broadcast_to(part, len(X))] for part in (y, offset)
        )

    def predict(self, X: Any, theta: arb_mat) -> list[arb]:
        return (matrix(X) * theta).entries()

    def __call__(self, weights: Array, start: Array) -> arb_mat | None:
        """Return the minimiser; None if Newton's method does not reach one."""
        ctx.prec = BITS
        theta, w = column(start), [arb(float(value)) for value in weights]
        for _ in range(80):
            eta = (self.X * theta).entries()
            first, second = zip(
                *(self.slopes(e + o, y) for e, o, y in zip(eta, self.offset, self.y, strict=True)),
                strict=True,
            )
            gradient = (
                self.X.transpose()
                * arb_mat(len(w), 1, [a * b for a, b in zip(w, first, strict=True)])
                + self.P * theta
            )
            try:
                step = (self.hessian([a * b for a, b in zip(w, second, strict=True)])).solve(
                    gradient
                )
            except ZeroDivisionError:
                return None
            theta = arb_mat([[value.mid() for value in row] for row in (theta - step).tolist()])
            size = lambda vector: max(float(abs(value).mid()) for value in vector.entries())
            if size(step) < 1e-40 * (1 + size(theta)):
                return theta
        return None

    def hessian(self, curvature: list[arb]) -> arb_mat:
        """Return P + Σ curvature_i x_i x_iᵀ."""
        rows = zip(curvature, self.X.tolist(), strict=True)
        return (
            self.X.transpose() * arb_mat([[c * value for value in row] for c, row in rows]) + self.P
        )


def lasso(X: Array, y: Array, a: float, ridge: float, guess: Array) -> arb_mat | None:
    """Return coefficients of ½‖y − Xβ‖² + a‖β‖₁ + ½ ridge ‖β‖² that have the signs of a guess.

    None if they are not minimal.
    """
    ctx.prec = BITS
    some, rest = np.flatnonzero(guess), np.flatnonzero(guess == 0)
    rows, sign = matrix(X[:, some]), [arb(float(value)) for value in np.sign(guess[some])]
    gram, pull = (
        rows.transpose() * rows + matrix(ridge * np.eye(len(some))),
        rows.transpose() * column(y),
    )
    beta = gram.solve(pull - arb_mat(len(some), 1, [arb(a) * value for value in sign]))
    slope = (matrix(X[:, rest].T) * (rows * beta - column(y))).entries() if len(rest) else []
    kept = all(b * s > 0 for b, s in zip(beta.entries(), sign, strict=True)) and all(
        abs(g) <= arb(a) for g in slope
    )
    return beta if kept else None


def softmax(
    X: Array, y: Array, classes: int, weights: Array, penalty: Array, start: Array
) -> arb_mat | None:
    """Return θ `[classes, features]` of Σ w (log Σ_k exp η_k − η_y) + ½ θᵀPθ, by Newton's method.

    None if it reaches none.
    """
    ctx.prec = BITS
    (n, q), rows, P = X.shape, matrix(X), matrix(penalty)
    theta, w = column(start), [arb(float(value)) for value in weights]
    for _ in range(60):
        eta = rows * arb_mat(classes, q, theta.entries()).transpose()
        each = [[eta[i, k].exp() for k in range(classes)] for i in range(n)]
        share = [[value / sum(row, arb(0)) for value in row] for row in each]
        missed = [[w[i] * (share[i][k] - (y[i] == k)) for k in range(classes)] for i in range(n)]
        gradient = P * theta + arb_mat(
            classes * q, 1, (arb_mat(missed).transpose() * rows).entries()
        )
        hessian = P.tolist()
        for a in range(classes):
            for b in range(classes):
                bent = [
                    [w[i] * share[i][a] * ((a == b) - share[i][b]) * v for v in rows.tolist()[i]]
                    for i in range(n)
                ]
                for j, row in enumerate((rows.transpose() * arb_mat(bent)).tolist()):
                    for k, value in enumerate(row):
                        hessian[a * q + j][b * q + k] += value
        step = arb_mat(hessian).solve(gradient)
        theta = arb_mat([[value.mid() for value in row] for row in (theta - step).tolist()])
        if max(float(abs(value).mid()) for value in step.entries()) < 1e-40:
            return arb_mat(classes, q, theta.entries())
    return None

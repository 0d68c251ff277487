"""BFGS with unlimited memory, and Newton steps that use its inverse Hessian.

An approximate inverse Hessian P₀ is updated by moves s and the changes y of the gradient along
them,

    P ← P + s vᵀ + v sᵀ,      v = ½ (1 + yᵀPy / sᵀy) s / sᵀy − Py / sᵀy,

and P is kept as these pairs of vectors, so that a product with it takes four products with matrices
of one row a move (J. Nocedal and S. J. Wright, Numerical Optimization, 2006, §6.1). A Newton step
solves `∇²F s = ∇F` by conjugate gradients preconditioned by P, until the remaining error, as
bounded by the smallest Ritz value, is a small part of the step.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._runtime import TwoNumbers
from ..linalg import VALUE_ROUNDING, Curvature, conjugate_gradients
from ..objectives import AbstractClosedForm, Function, Vector, preconditioner
from .newton import FLOOR_DECREMENT, MAX_NEWTON_STEPS, Minimisation

# largest number of moves before a restart, and of numbers in them (a quarter of a gigabyte)
MOVES = 1000
NUMBERS = 2**25
# Wolfe's constants: the share of the predicted fall, and of the slope, that a move must reach
FALL = 1e-4
FLATTER = 0.9
# largest number of products of a Newton step; share of its length that may remain unsolved (0.3
# takes as long in all)
PRODUCTS = 100
PART = 0.1
# Products in the search for a direction along which F curves down. At a saddle of a hidden Markov
# model of 2,751 parameters, whose loss was 8.6 above the minimum and bounded by 1.9, 15 products
# found one; at five minimisers they found none.
SADDLE = 20

Solve = Callable[[Vector], Vector]


class BFGS:
    """State of a descent, and its approximate inverse Hessian.

    `start` multiplies by P₀. A first step is at most `longest`.
    """

    def __init__(self, F: Function, theta: Vector, start: Solve, longest: float = 1.0):
        most = max(8, min(MOVES, NUMBERS // (2 * theta.size)))
        self.F = F
        self.start = start
        self.longest = longest
        self.count = 0
        self.moves = np.empty((most, theta.size))
        self.turns = np.empty((most, theta.size))
        self.theta = theta
        self.value, self.gradient = F.look(theta)
        self.step = start(self.gradient)

    def newton(self, gradient: Vector) -> Vector:
        """Multiply a gradient by P."""
        moves = self.moves[: self.count]
        turns = self.turns[: self.count]
        return self.start(gradient) + (turns.T @ (moves @ gradient) + moves.T @ (turns @ gradient))

    def descend(self, enough: Callable[[float], bool], most: int) -> bool:
        """Descend until the decrement √(gᵀPg) is small enough.

        False if F falls no more, or after `most` moves.
        """
        for _ in range(most):
            promised = float(self.gradient @ self.step)
            if promised > 0 and enough(promised**0.5):
                return True
            if not (promised > 0 and self._move(promised)):
                return False
        return False

    def _move(self, promise: float) -> bool:
        """Make one move that meets Wolfe's conditions, and update P."""
        length, value, gradient = self._line_search(promise)
        if not length:
            return False
        s = -length * self.step
        y = gradient - self.gradient
        step = self.newton(gradient)
        change = float(s @ y)
        if self.count == len(self.moves):  # restart
            self.count = 0
            step = self.start(gradient)
        elif change > 0:
            step_change = step - self.step
            v = (0.5 * (1 + y @ step_change / change) * s - step_change) / change
            self.moves[self.count] = s
            self.turns[self.count] = v
            self.count += 1
            step = step + s * (v @ gradient) + v * (s @ gradient)
        self.theta = self.theta + s
        self.value = value
        self.gradient = gradient
        self.step = step
        return True

    def _line_search(self, promise: float) -> tuple[float, float, Vector]:
        """Find a length of step that meets Wolfe's conditions, with F and its gradient there; zero
        if there is none.

        A first step is no longer than one, unless P₀ is trusted, as it may lead over a hill.
        """
        length = 1.0 if self.count else min(1.0, self.longest * promise**-0.5)
        low = 0.0, -promise
        high = np.inf, np.nan
        max_line_looks = 30  # largest number of evaluations along one direction
        for _ in range(max_line_looks):
            value, gradient = self.F.look(self.theta - length * self.step)
            slope = -float(gradient @ self.step)
            if not value <= self.value - FALL * length * promise + VALUE_ROUNDING * abs(self.value):
                high = length, slope
            elif slope < -FLATTER * promise:
                low = length, slope
            else:
                return length, value, gradient
            length = _between(low, high)
        return 0.0, self.value, self.gradient


def minimise_by_information(
    objective: AbstractClosedForm, F: Function, theta: Vector
) -> Minimisation:
    """Minimise without a Hessian, by BFGS from the model's matrix over all parameters that
    approximates ∇²F at a start.

    The last step, below a hundredth of `FLOOR_DECREMENT`, is taken without a look. A model may have
    no such matrix.
    """
    parts = preconditioner(objective, F.to_tree(theta), np.ones(objective.num_units))
    if not parts or parts[0].matrices.shape != (1, theta.size, theta.size):
        return Minimisation(np.inf, theta, False)
    curvature = Curvature.of(np.asarray(parts[0].matrices[0]))
    if not curvature.definite:
        return Minimisation(np.inf, theta, False)
    way = BFGS(F, theta, curvature.step, np.inf)
    # at ten times as much the error of a second-order jackknife shows that of the fit
    exact = 1e-2 * FLOOR_DECREMENT
    converged = way.descend(lambda size: size < exact, MAX_NEWTON_STEPS)
    return Minimisation(way.value, way.theta - way.step if converged else way.theta, converged)


def _between(low: TwoNumbers, high: TwoNumbers) -> float:
    """Find the length, between two lengths or beyond the first, at which the line through their
    slopes is zero.
    """
    a, falling = low
    b, rising = high
    if not np.isfinite(b):
        return 4 * a
    zero = a - falling * (b - a) / (rising - falling) if rising > 0 else np.nan
    if np.isfinite(zero):
        return min(max(zero, a + 0.1 * (b - a)), b - 0.1 * (b - a))
    return 0.5 * (a + b)


class NewtonDirection(NamedTuple):
    """Newton step, and the share of its length, in the norm of the Hessian, still unsolved.

    Infinite if F curves down.
    """

    step: Vector
    remainder: float


def curves_down(product: Solve, solve: Solve, gradient: Vector) -> bool:
    """Tell whether F curves down along a direction that conjugate gradients meet from a random
    gradient.

    The gradient of F itself need not show the saddle.
    """
    return not np.isfinite(newton_step(product, solve, gradient, SADDLE, 0.0).remainder)


def newton_step(
    product: Solve, solve: Solve, gradient: Vector, most: int = PRODUCTS, part: float = PART
) -> NewtonDirection:
    """Compute a Newton step by at most `most` conjugate gradients preconditioned by `solve`, until
    `part` of it is unsolved.
    """
    solution = conjugate_gradients.solve(
        lambda v, _: product(v[0])[None],
        lambda v, _: solve(v[0])[None],
        gradient[None],
        most,
        part=part,
    )
    step, square, length, least, is_convex = (values[0] for values in solution)
    if not is_convex:
        return NewtonDirection(step, np.inf)
    return NewtonDirection(step, float(np.sqrt(square / max(least * length, 1e-300))))

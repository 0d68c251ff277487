"""The public names of this room, after scikit-learn's."""

from .extensions.sklearn._search import OneFitSearchCV as OneFitSearchCV
from .extensions.sklearn._validation import (
    cross_val_predict as cross_val_predict,
    cross_val_score as cross_val_score,
    cross_validate as cross_validate,
)

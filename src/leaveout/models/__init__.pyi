"""The public names of the models' room that are not at the package's root."""

from . import emissions as emissions
from .base import (
    AbstractClosedForm as AbstractClosedForm,
    AbstractLinearPredictor as AbstractLinearPredictor,
    Costs as Costs,
    Parameters as Parameters,
    Units as Units,
)
from .crf.tags import entities as entities, entity_f1 as entity_f1, token_accuracy as token_accuracy
from .glm import losses as losses, penalties as penalties
from .hidden.hidden_chain import Dirichlet as Dirichlet
from .hidden.hidden_field import External as External, Free as Free

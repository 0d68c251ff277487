"""`leaveout about` prints what a report of a fault needs."""

import os
import re
from contextlib import suppress
from importlib import metadata

from sklearn import show_versions

from ._console import console

VARIABLE = re.compile("LEAVEOUT|OPENBLAS|OMP_|MKL|JAX|XLA|NUMBA")


def about() -> None:
    """Print versions, machine and libraries of linear algebra, for a report of a fault.

    Versions are those of leaveout and of the packages that it and its extras name. Environment
    variables that it or they read are printed too.
    """
    requirements = "\n".join(["leaveout", *(metadata.requires("leaveout") or ())])
    for name in dict.fromkeys(re.findall(r"(?m)^[\w.-]+", requirements)):
        with suppress(metadata.PackageNotFoundError):
            console.print(name, metadata.version(name))
    for name in filter(VARIABLE.match, os.environ):
        console.print(f"{name}={os.environ[name]}")
    show_versions()

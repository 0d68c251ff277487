"""`leaveout about` prints what a report of a fault needs."""

import os
import platform
import re
from contextlib import suppress
from importlib import metadata

import scipy.linalg  # noqa: F401 (loads the libraries of linear algebra)
from threadpoolctl import threadpool_info

from ._console import console

# packages of the library and of its extras, but for extras of those who work on it
PACKAGE = re.compile(r"([\w.-]+)(?!.*extra == .(bench|dev|docs|release|test))")
VARIABLE = re.compile("LEAVEOUT|OPENBLAS|OMP_|MKL|JAX|XLA|NUMBA")


def about() -> None:
    """Print versions, machine and libraries of linear algebra, for a report of a fault.

    Versions are those of leaveout and of the packages that it and its extras use. Environment
    variables that it or they read are printed too.
    """
    packages = filter(None, map(PACKAGE.match, metadata.requires("leaveout") or ()))
    for name in dict.fromkeys(["leaveout", *(package[1] for package in packages)]):
        with suppress(metadata.PackageNotFoundError):
            console.print(name, metadata.version(name))
    console.print("Python", platform.python_version(), "on", platform.platform())
    for library in threadpool_info():
        console.print(
            library["internal_api"],
            library["version"],
            library.get("architecture"),
            library["num_threads"],
            "threads",
        )
    for name, value in os.environ.items():
        if VARIABLE.match(name):
            console.print(f"{name}={value}")

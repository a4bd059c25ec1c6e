"""Packages that some ways of holding weights need, and this program does not bring: is one here, what is missing."""

import importlib
import importlib.util
import logging
from types import ModuleType


def is_installed(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that the module would lie in
        return False


def quietly_imported(module: str) -> ModuleType:
    """The module, without the lines that it logs about optional kernels it lacks."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        return importlib.import_module(module)
    finally:
        logging.disable(before)

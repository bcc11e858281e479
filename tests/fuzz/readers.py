"""Every reader by name."""

import warnings

from tests.fuzz import files, records
from tests.fuzz.judge import Reader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower's imports warn about its dependencies
    from tests.fuzz import flower

READERS: dict[str, Reader] = {**files.READERS, **records.READERS, **flower.READERS}

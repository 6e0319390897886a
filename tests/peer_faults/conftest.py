"""Fixtures of the tests in this folder."""

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(2024)

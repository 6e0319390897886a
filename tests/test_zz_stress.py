import sys; sys.path.insert(0,'/work/wt-cuda/tests')
import pytest
import test_host_backend as t
from test_backends import PAIRS, MODULES, examples, same_as_the_reference
from hypothesis import given, strategies as st
import os
N=int(os.environ.get("N","12"))
from hypothesis import settings, HealthCheck, Phase
def many(count):
    return settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("case", t.LARGE, ids=str)
def test_large(case):
    t.examples=lambda n: many(N)
    t.test_large_weights_are_those_of_torch.__wrapped__ if hasattr(t.test_large_weights_are_those_of_torch,'__wrapped__') else None
    t.test_large_weights_are_those_of_torch(case)

"""The number of threads inside and afterwards."""

import torch

from polyfed.engine.threads import threads


def test_the_number_holds_inside_and_the_callers_is_back_afterwards():
    before = torch.get_num_threads()
    with threads(1):
        with threads(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
        with threads(1):
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_code_that_changed_the_number_inside_does_not_decide_what_follows():
    before = torch.get_num_threads()
    with threads(1):
        torch.set_num_threads(2)
        with threads(1):
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

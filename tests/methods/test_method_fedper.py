"""FedPer (Arivazhagan et al. 2019): the head is personal, the body averaged, both trained together."""

from collections.abc import Callable

import torch
from riding import Ride, spoiling

from polyfed.methods.fedper import FedPer
from polyfed.params import body, head

Riding = Callable[..., Ride]


def test_the_body_is_averaged_and_the_head_is_never_the_servers(ride: Riding) -> None:
    run = ride("fedper", data="skewed", rounds=2)
    n = torch.tensor([len(c.train) for c in run.world.federation.clients], dtype=torch.float64)
    rows = torch.stack([run.train(2, k).up.w.double() for k in range(4)])
    mean = (n / n.sum()) @ rows
    torch.testing.assert_close(run.params.get(body)[0].double(), mean, rtol=1e-5, atol=1e-6)
    assert torch.equal(run.params.get(head)[0], run.initial.get(head)[0])
    assert run.result["global"] is None


def test_a_client_trains_its_own_head_on_the_new_body(ride: Riding) -> None:
    run = ride("fedper", data="skewed", rounds=2)
    for k in range(4):
        one, two = run.train(1, k), run.train(2, k)
        assert two.before == one.after
        live = run.initial.copy()
        live.flat.copy_(two.live)
        assert torch.equal(two.memory()["personal"], live.get(head)[0])
        assert torch.equal(two.up.w, live.get(body)[0])
    heads = [tuple(run.train(2, k).memory()["personal"].tolist()) for k in range(4)]
    assert len(set(heads)) == 4


def test_the_personal_head_on_the_latest_body_answers(ride: Riding) -> None:
    run = ride("fedper", data="skewed", rounds=2)
    model = run.result.client(1).model
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    expected = run.params.copy()
    expected.put(head, run.train(2, 1).memory()["personal"])
    assert torch.equal(flat, expected.flat)


def test_a_rejected_upload_leaves_the_head_as_before(ride: Riding) -> None:
    run = ride(spoiling(FedPer), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    assert run.train(3, 1).before == run.train(1, 1).after != run.train(2, 1).after

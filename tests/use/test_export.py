"""Exported models answer as the run's do, need nothing of the run, and execute nothing when they are read."""

import importlib.util
import json
import shutil
import zipfile

import numpy as np
import pytest
import torch

import polyfed
from polyfed.engine.work import federation_of
from polyfed.errors import DataError, UsageError
from polyfed.use.export import FILES, is_export, read

PLAIN = {"method": "fedper"}
ECL = {"method": "ecl", "method.phase2_epochs": 1, "split.alpha": 0.1}
GRAPHS = ("onnx", "torch-export")


@pytest.fixture(scope="module")
def rows():
    """Raw samples, shaped like the data."""
    from polyfed.config import make_config

    return federation_of(make_config()).dataset.x[500:700]


def same(ours, theirs) -> None:
    """Equal masks, and finite logits within 1e-5."""
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    finite = ours.isfinite()
    assert (ours - theirs)[finite].abs().max() <= 1e-5


def needs(form: str) -> None:
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)


@pytest.mark.slow
@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.parametrize("keys", [PLAIN, "resnet", ECL | {"model.name": "mlp-bn"}], ids=["plain", "bn", "ecl"])
def test_graphs_have_the_runs_logits_for_any_number_of_rows(trial, resnet, rows, tmp_path, form, keys):
    needs(form)
    result = trial.kept(PLAIN | resnet if keys == "resnet" else keys)
    ours = result.client(1)
    read_back = read(result.export(form, 1, tmp_path / "out"))
    for count in (1, 2, 200):
        same(ours.logits(rows[:count]), read_back.logits(rows[:count]))
    here = str(result.path.parent).encode()
    assert not any(here in file.read_bytes() for file in (tmp_path / "out").iterdir()), "no path of this machine"
    if form == "torch-export":
        theirs = torch.export.load(tmp_path / "out" / "model.pt2").module()
        same(ours.logits(rows), theirs(read_back.preparation.tensor(rows)))


def test_a_mixture_is_exported_like_a_network(trial, own, rows, tmp_path):
    result = trial.kept({"method.name": own("Mixed"), "rounds": 1})
    read_back = read(result.export("safetensors", 1, tmp_path / "out"))
    same(result.client(1).logits(rows), read_back.logits(rows))


PERSONAL = {
    "by prototypes": {"method": "fedproto", "method.predict": "prototype"},
    "two heads": {"method": "fedrod", "model.name": "mlp-bn"},
    "two networks": {"method": "flda"},
}
PLAINER = [
    pytest.param({"method": name}, marks=pytest.mark.slow, id=name)
    for name in ("fedproto", "lg-fedavg", "pfedme", "per-fedavg", "pfedla", "lws", "tau-norm", "fedafa")
]


@pytest.mark.parametrize("keys", [*(pytest.param(keys, id=kind) for kind, keys in PERSONAL.items()), *PLAINER])
def test_what_answers_for_a_client_is_exported_as_it_is(trial, rows, tmp_path, keys):
    result = trial.kept(keys | {"rounds": 2})
    read_back = read(result.export("safetensors", 1, tmp_path / "out"))
    same(result.client(1).logits(rows), read_back.logits(rows))
    if result["global"] is not None:
        whole = read(result.export("safetensors", None, tmp_path / "whole"))
        same(result.global_model().logits(rows), whole.logits(rows))
        assert not torch.equal(whole.logits(rows), read_back.logits(rows))


@pytest.mark.slow
@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.parametrize("keys", [PERSONAL["by prototypes"], PERSONAL["two networks"]], ids=["prototypes", "two nets"])
def test_so_are_its_graphs(trial, rows, tmp_path, form, keys):
    needs(form)
    result = trial.kept(keys | {"rounds": 2})
    same(result.client(1).logits(rows), read(result.export(form, 1, tmp_path / "out")).logits(rows))


def test_a_gate_is_no_network_that_can_be_built_again(trial, own, tmp_path):
    result = trial.kept({"method.name": own("MixedByGate"), "rounds": 2, "participation": 1.0})
    with pytest.raises(UsageError, match="is a Gated, which does not say how it is built again; export it as onnx or"):
        result.export("safetensors", 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", GRAPHS)
def test_networks_under_a_gate_answer_as_in_the_run_when_they_are_exported(trial, own, rows, tmp_path, form):
    needs(form)
    result = trial.kept({"method.name": own("MixedByGate"), "rounds": 2, "participation": 1.0})
    read_back = read(result.export(form, 1, tmp_path / "out"))
    for count in (1, 200):
        same(result.client(1).logits(rows[:count]), read_back.logits(rows[:count]))
    gate = result.client(1).model.gate(torch.from_numpy(rows[:, None, :, :, 0].astype(np.float32))).softmax(1)
    assert gate.std(0).min() > 1e-4, "it was trained, or this proves little"


@pytest.mark.slow
def test_onnx_runs_where_there_is_no_torch(trial, rows, tmp_path):
    needs("onnx")
    import onnxruntime

    result = trial.kept(ECL)
    out = result.export("onnx", 1, tmp_path / "out")
    said = json.loads((out / "preprocessing.json").read_text())
    x = (rows.transpose(0, 3, 1, 2).astype(np.float32) - said["mean"][0]) / said["std"][0]
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    assert session.get_inputs()[0].shape == ["N", 1, 8, 8]
    logits = session.run(["logits"], {"x": x.astype(np.float32)})[0]
    same(result.client(1).logits(rows), torch.from_numpy(logits))


@pytest.mark.parametrize(
    "keys",
    [PLAIN, ECL, {"method": "mupfl", "method.m": 5, "method.match_steps": 5, "method.draws": 2}],
    ids=["plain", "ensemble", "changed by its method"],
)
def test_weights_and_a_description_are_enough(trial, rows, tmp_path, keys):
    result = trial.kept(keys)
    out = result.export("safetensors", 1, tmp_path / "out")
    assert is_export(out)
    assert sorted(p.name for p in out.iterdir()) == sorted(
        ["card.md", "classes.json", "model.json", "model.safetensors", "preprocessing.json", "sbom.json"]
    )
    again = read(shutil.copytree(out, tmp_path / "elsewhere"))
    ours = result.client(1)
    same(ours.logits(rows), again.logits(rows))
    assert again.class_names == tuple("0123456789")
    if keys is ECL:
        assert not ours.logits(rows).isfinite().all(), "a class is masked, or this proves little"


def test_the_global_model_and_a_network_without_running_statistics(trial, rows, tmp_path):
    keys = {"method": "fedavg", "model.name": "mlp-bn", "model.bn_running_stats": False, "eval.batch": 50}
    result = trial.kept(keys)
    out = result.export("safetensors", None, tmp_path / "out")
    same(result.global_model().logits(rows), read(out).logits(rows))
    assert "norms go by the batch (50 rows)" in (out / "card.md").read_text()


def test_without_a_place_it_goes_into_the_run_and_never_over_another(trial, tmp_path):
    result = trial(PLAIN)
    out = result.export("safetensors", 0)
    assert out == result.path / "export" / "client-0-safetensors"
    with pytest.raises(UsageError, match="exists and is not empty; an export never overwrites"):
        result.export("safetensors", 0)
    with pytest.raises(UsageError, match="exported as safetensors, onnx, torch-export, not 'pickle'"):
        result.export("pickle", 0, tmp_path / "no")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        result.export("safetensors", 0, tmp_path / "file" / "out")
    assert [p.name for p in (result.path / "export").iterdir()] == ["client-0-safetensors"]


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_onnx_is_refused_in_one_sentence(trial, tmp_path, monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(UsageError, match="pip install 'polyfed\\[export\\]'"):
        trial.kept(PLAIN).export("onnx", 0, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# ---- what is read may come from anywhere


@pytest.fixture
def weights(trial, tmp_path):
    return trial.kept(PLAIN).export("safetensors", 0, tmp_path / "out")


def changed(out, change) -> None:
    about = json.loads((out / "model.json").read_text())
    change(about)
    (out / "model.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about: about.update(format="pickle"), "not a whole exported model"),
        (lambda about: about.update(sha256="0"), "is damaged"),
        (lambda about: about["plan"]["model"].update(width=0.2), "cannot build the exported model"),
        (lambda about: about["plan"].pop("shape"), "cannot build the exported model"),
        (lambda about: about["plan"].update(ensemble={"kind": "nothing"}), "cannot build the exported model"),
        (
            lambda about: about["plan"]["model"].update(name="evil.py:Net"),
            "code outside polyfed, which is not exec",
        ),
        (
            lambda about: about["plan"].update(method={"name": "ecl", "base": {"name": "os:system"}}),
            "code outside polyfed",
        ),
    ],
)
def test_a_changed_description_is_refused(weights, change, words):
    changed(weights, change)
    with pytest.raises(DataError, match=words):
        read(weights)


def test_a_network_from_a_file_is_built_again_only_where_it_is_trusted(trial, rows, tmp_path):
    source = "import torch\n\n\nclass Net(torch.nn.Sequential):\n    def __init__(self, classes):\n"
    source += "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
    (tmp_path / "mine.py").write_text(source)
    keys = {key: value for key, value in trial.keys(PLAIN).items() if not key.startswith("model.")}
    result = polyfed.run(keys, method="fedavg", model=f"{tmp_path / 'mine.py'}:Net", out=tmp_path / "run")
    out = result.export("safetensors", 0, tmp_path / "out")
    same(read(out, trusted=True).logits(rows), result.client(0).logits(rows))
    with pytest.raises(DataError, match="if you trust it say --trust, or export the model as onnx or torch-export"):
        read(out)
    assert str(tmp_path) not in (out / "card.md").read_text()


def test_a_damaged_file_is_refused(weights):
    (weights / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="is damaged"):
        read(weights)


def test_every_format_has_a_file():
    assert set(FILES) == {"safetensors", *GRAPHS}


@pytest.mark.slow
def test_an_archive_that_could_execute_is_refused(trial, tmp_path):
    """What torch's own loader would unpickle, import or evaluate."""
    from polyfed.engine.sealed import refuse_code

    file = trial.kept(PLAIN).export("torch-export", 0, tmp_path / "out") / "model.pt2"
    refuse_code(file)

    def with_change(change) -> None:
        """The archive again, its entries changed."""
        with zipfile.ZipFile(file) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        change(entries)
        with zipfile.ZipFile(tmp_path / "evil.pt2", "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        with pytest.raises(DataError, match="could execute code"):
            refuse_code(tmp_path / "evil.pt2")

    def graph(old: str, new: str):
        def change(entries) -> None:
            text = entries["model/models/model.json"].decode()
            assert old in text
            entries["model/models/model.json"] = text.replace(old, new).encode()

        return change

    for change in (
        graph("torch.ops.aten.linear.default", "torch.hub.load"),
        graph("torch.ops.aten.linear.default", "torch.ops.aten.from_file.default"),
        graph("Symbol('", "__import__('os').system('"),
        graph("torch.ops.aten.linear.default", "_operator.attrgetter"),
        graph('"guards_code": []', '"guards_code": ["print(1)"]'),
        graph('"forward_arg_names": [', '"forward_arg_names": ["x=print(1)", '),
        graph("builtins.tuple", "os.path"),
        lambda entries: entries.update({"model/data/sample_inputs/model.pt": b"pickle"}),
        lambda entries: entries.update({"model/data/constants/custom_obj_0": b"pickle"}),
        lambda entries: entries.update({"model/data/aotinductor/model/x.so": b"library"}),
        lambda entries: entries.update(
            {
                "model/data/weights/model_weights_config.json": entries[
                    "model/data/weights/model_weights_config.json"
                ].replace(b'"use_pickle": false', b'"use_pickle": true')
            }
        ),
    ):
        with_change(change)

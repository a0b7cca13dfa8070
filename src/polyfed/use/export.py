"""Exporting a predictor as a directory that needs nothing of the run: the model, its classes, its preparation."""

import copy
import importlib.util
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from polyfed.config import Config
from polyfed.data.colours import colours
from polyfed.data.preparation import Preparation
from polyfed.engine.sealed import refuse_code
from polyfed.errors import DataError, PolyfedError, RunFailed, UsageError
from polyfed.files import read_plain
from polyfed.message import digest_of
from polyfed.methods.base import Method, OnTop, methods
from polyfed.models.base import Ensemble, Model, Net, models
from polyfed.models.lora import Lora, merge_layers
from polyfed.use.predictor import Predictor
from polyfed.use.sbom import bill_of_materials

FILES = {"safetensors": "model.safetensors", "onnx": "model.onnx", "torch-export": "model.pt2"}
ABOUT, CLASSES, PREPARATION, CARD = "model.json", "classes.json", "preprocessing.json", "card.md"
SBOM = "sbom.json"
MOST = 1e-4  # share of the largest logit by which a copy's answers may differ
TRIED, PICTURES = 64, 4  # samples a copy is tried on; fewer where it answers for every pixel


def export(
    config: Config,
    own: Model,
    predictor: Predictor,
    form: str,
    out: Path,
    rows: Any,
    card: Callable[[float], str],
) -> Path:
    """Write the directory, then try the copy on raw rows; `card` is told the largest difference of a logit.

    `own` is the architecture of the client that the predictor answers for, or the common one.
    """
    if form not in FILES:
        raise UsageError(f"a model is exported as {', '.join(FILES)}, not '{form}'")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"'{out}' exists and is not empty; an export never overwrites: give another --out")
    with _aside(out) as folder:
        _write(config, own, predictor, form, folder)
        tried = rows[: PICTURES if own.of_pixels else TRIED]
        worst = _difference(predictor.logits(tried), read(folder, trusted=True).logits(tried))
        (folder / CARD).write_text(card(worst), encoding="utf-8")
    return out


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A directory beside `out`, which is renamed to it only when everything is written."""
    aside = out.parent / f".{out.name}.{os.getpid()}.tmp"
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.rename(out)
    except OSError as error:
        raise UsageError(f"cannot write to '{out}': {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of a finite logit; a copy that masks other classes or differs much is refused."""
    finite = torch.isfinite(ours)
    if ours.shape != theirs.shape or not torch.equal(finite, torch.isfinite(theirs)):
        raise RunFailed("the exported model does not answer the same classes as the run's: nothing is written")
    worst = float((ours - theirs)[finite].abs().max()) if finite.any() else 0.0
    if worst > MOST * max(1.0, float(ours[finite].abs().max()) if finite.any() else 1.0):
        raise RunFailed(f"the exported model's logits differ from the run's by up to {worst:.2g}: nothing is written")
    return worst


def _write(config: Config, own: Model, predictor: Predictor, form: str, folder: Path) -> None:
    """Write everything but the card."""
    model, shape = alone(predictor.model), predictor.preparation.model_shape
    about: dict[str, Any] = {"polyfed": metadata.version("polyfed"), "format": form, "file": FILES[form]}
    about["batch"] = predictor.batch  # rows answered together, which matters where a norm goes by the batch
    file = folder / FILES[form]
    if form == "safetensors":
        about["plan"] = _plan(config, own, model, shape, len(predictor.class_names))
        file.write_bytes(save(dict(model.state_dict())))
    else:
        about |= {"input": "x", "output": "logits", "shape": ["N", *shape]}
        try:
            _as_graph(model, shape, predictor.preparation.model_dtype, form, file)
        except PolyfedError:
            raise
        except Exception as error:  # what the exporters raise about a network they cannot follow
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            what = f"model '{own.name}' cannot be exported as {form}"
            raise UsageError(f"{what} ({why}); safetensors keeps its weights") from None
    about["sha256"] = digest_of(file.read_bytes())
    classes = _with_colours(predictor.class_names) if own.of_pixels else list(predictor.class_names)
    for name, value in ((ABOUT, about), (CLASSES, classes), (SBOM, bill_of_materials())):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    predictor.preparation.write(folder / PREPARATION)


def _with_colours(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Classes of masks with the colours they are shown in."""
    return [{"name": n, "colour": colour} for n, colour in zip(names, colours(names).tolist(), strict=True)]


def alone(model: Any) -> nn.Module:
    """A copy on the CPU whose tensors are its own, not views of a run's flat vector, with adapters merged."""
    made = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for module in made.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    own = tensor.detach().clone(memory_format=torch.contiguous_format)
                    table[name] = nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own
    merge_layers(made)
    return made


def _plan(config: Config, own: Model, model: nn.Module, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """How the module is built again before its weights are loaded."""
    method = config.method
    while type(method).build is OnTop.build:
        method = method.base
    changed = type(method).build is not Method.build
    network = {"model": _structure(own), "method": method.dump() if changed else None}
    if changed and own != config.model.common:
        network["common"] = _structure(config.model.common)
    network |= {"shape": list(shape), "classes": classes, "ensemble": None}
    if isinstance(model, Ensemble):
        return {**network, "ensemble": {"kind": type(model).__name__.lower(), **model.plan()}}
    if not isinstance(model, Net):
        what = f"what answers in method '{config.method.name}' is a {type(model).__name__}"
        raise UsageError(f"{what}, which does not say how it is built again; export it as onnx or torch-export")
    return network


def _structure(model: Model) -> dict[str, Any]:
    """What builds a network: adapters are merged by now, and the file it started from is not asked for again."""
    plain = model.model_copy(update={"lora": Lora()})
    return {key: value for key, value in plain.dump().items() if key != "weights"}


def _as_graph(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, form: str, file: Path) -> None:
    """The computation itself, for any number of rows; what it holds of this machine's paths is taken out."""
    if form == "onnx":
        _need("onnx", "onnxscript", "onnxruntime")
    with _hushed():
        program = torch.export.export(
            model, (torch.zeros(2, *shape, dtype=dtype),), dynamic_shapes=({0: torch.export.Dim("N", min=1)},)
        )
        for node in program.graph.nodes:
            for key in node.meta.keys() - {"val", "tensor_meta"}:
                del node.meta[key]
        program.example_inputs = None
        if form == "onnx":
            names: Any = {"input_names": ["x"], "output_names": ["logits"], "dynamic_shapes": ({0: "N"},)}
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, **names)
            assert made is not None
            made.save(str(file))
        else:
            torch.export.save(program, file)


def _need(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"the format onnx needs the package '{missing[0]}': pip install 'polyfed[export]'")


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence torch's exporters, which warn about packages that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# ---- reading


def is_export(path: Path) -> bool:
    """Whether a directory is an exported model."""
    return (path / ABOUT).is_file() and (path / PREPARATION).is_file()


def read(folder: Path, trusted: bool = False) -> Predictor:
    """The predictor in an exported directory; nothing executes, unless code that it names is trusted."""
    try:
        about = json.loads(read_plain(folder / ABOUT))
        told = json.loads(read_plain(folder / CLASSES))
        names = tuple(str(one["name"] if isinstance(one, dict) else one) for one in told)
        form, file = about["format"], folder / FILES[about["format"]]
        whole, batch = digest_of(read_plain(file)) == about["sha256"], max(1, int(about["batch"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"'{folder}' is not a whole exported model: {error}") from None
    if not whole:
        raise DataError(f"the exported model '{file}' is damaged: it is not the file {ABOUT} tells of")
    if not trusted:
        _refuse_foreign_code(about.get("plan"))
    readers = {"safetensors": _from_weights, "onnx": _from_onnx, "torch-export": _from_program}
    return Predictor(readers[form](file, about), Preparation.read(folder / PREPARATION), names, batch)


def _from_weights(file: Path, about: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    try:
        model = _built(about["plan"])
        model.load_state_dict(load_file(file), strict=True)
    except PolyfedError:
        raise
    except (SafetensorError, RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
        raise DataError(f"cannot build the exported model of '{file}': {str(error).splitlines()[0]}") from None
    return model.eval().requires_grad_(False)


def _built(plan: dict[str, Any]) -> nn.Module:
    model = models.build(plan["model"], "model")
    method = None if plan["method"] is None else methods.build(plan["method"], "method")
    common = models.build(plan["common"], "model") if "common" in plan else None
    sizes = tuple(plan["shape"]), plan["classes"]

    def make() -> Net:
        net = model.made(*sizes)
        if method is None:
            return net
        return method.build(net) if common is None else method.build_own(net, lambda: common.made(*sizes))

    ensemble = plan["ensemble"]
    methods.names()  # the ensembles come with the methods
    return make() if ensemble is None else Ensemble.kinds[ensemble["kind"]].planned(ensemble, make)


def _refuse_foreign_code(section: Any) -> None:
    """Refuse a plan that names code, like file.py:Class, because reading it would import and so execute that code."""
    if isinstance(section, dict):
        name = section.get("name")
        if isinstance(name, str) and ":" in name:
            raise DataError(
                f"the exported model is built by '{name}', code outside polyfed, which is not executed; "
                "look at it, and if you trust it say --trust, or export the model as onnx or torch-export"
            )
        for value in section.values():
            _refuse_foreign_code(value)


def _from_onnx(file: Path, about: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    _need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, which need not be imported to be named
        raise DataError(f"cannot read the exported model '{file}': {str(error).splitlines()[0]}") from None
    return lambda x: torch.from_numpy(session.run(None, {"x": x.contiguous().numpy()})[0])


def _from_program(file: Path, about: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    refuse_code(file)
    try:
        with _hushed():
            return torch.export.load(file).module()
    except Exception as error:  # whatever the loader meets in a file of another version
        raise DataError(f"cannot read the exported model '{file}': {str(error).splitlines()[0]}") from None

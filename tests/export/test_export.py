"""What leaves Python: `torch.export` and ONNX, for every encoding and for models, at sizes that were not traced."""

import itertools
import os
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import mmpos
from mmpos import create_encoding
from mmpos.models import TextTransformer, VisionTransformer
from mmpos.testing.subject import TOKEN_AXES, Subject
from tests.test_contract import CONFIGURATIONS

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

# The long form exports all configurations of every encoding, each with integer and with real coordinates.
LONG = int(os.environ.get("MMPOS_EXAMPLES", "1")) > 1


class Together(nn.Module):
    """Encodings of one kind, on the same coordinates; the results are their tensors."""

    def __init__(self, encodings: list[nn.Module], kind: str, names: list[str], length: int | None):
        super().__init__()
        self.encodings = nn.ModuleList(encodings)
        self.kind, self.names, self.length = kind, names, length

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.names, inputs, strict=True))
        coords = [given.pop(name) for name in TOKEN_AXES[self.kind]]
        if self.length is not None:
            given["length"] = self.length
        results = [encoding(*coords, **given) for encoding in self.encodings]
        if self.kind == "rotary":
            parts = itertools.chain.from_iterable((each.cos, each.sin, each.scale) for each in results)
            return tuple(part for part in parts if part is not None)
        return tuple(results)


def groups():
    """Encodings that take the same inputs: the first configuration of each, every third with real coordinates."""
    found: dict[tuple, list] = {}
    for number, (name, configurations) in enumerate(CONFIGURATIONS.items()):
        places = range(len(configurations))
        pairs = itertools.product(places, (False, True)) if LONG else {(0, number % 3 == 0)}
        for place, floats in sorted(pairs):
            encoding = create_encoding(name, **configurations[place])
            subject = Subject(encoding)
            alone = name if subject.kind == "bias" and encoding.needs else ""
            within = name if subject.example is not None else ""  # each table holds other coordinates
            key = (subject.kind, subject.axes, floats, alone and f"{alone}-{place}", within and f"{within}-{place}")
            found.setdefault(key, []).append((f"{name}-{place}", encoding))
    return found


GROUPS = groups()


def sizes_of(name: str, size: dict[str, Dim]) -> dict[int, Dim]:
    """Which axes of an input are free."""
    tokens = {"query": 2, "key": 2}.get(name, 1)
    return {0: size["b"], tokens: size["k" if name in ("k_coords", "key") else "n"]}


def run_onnx(program, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        model = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False).model_proto
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    fed = {own.name: part.numpy() for own, part in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(result) for result in session.run(None, fed)]


def check_program(program, module: nn.Module, inputs: tuple[Tensor, ...], exact: bool, onnx: bool = True) -> None:
    """Fails unless the programs give what the module gives, and hold no complex number."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    assert not [value for value in values if isinstance(value, Tensor) and value.is_complex()]
    with torch.no_grad():
        want = module(*inputs)
        want, got = (part if isinstance(part, tuple) else (part,) for part in (want, program.module()(*inputs)))
    torch.testing.assert_close(got, want, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-6, equal_nan=True)
    if not onnx:
        return
    for result, wanted in zip(
        run_onnx(program, inputs), want, strict=True
    ):  # of large sums, the last digits of small entries are lost
        largest = wanted.abs().nan_to_num(0).max().item()
        torch.testing.assert_close(result, wanted, rtol=0, atol=2e-6 * max(largest, 1), equal_nan=True)


@pytest.mark.parametrize("key", GROUPS, ids=["-".join(map(str, filter(bool, key))) for key in GROUPS])
def test_encodings_are_the_same_outside(key):
    _, encodings = zip(*GROUPS[key], strict=True)
    subject, floats = Subject(encodings[0]), key[2]
    inputs, others = subject.inputs(9, 7, (2,), floats=floats), subject.inputs(23, 11, (3,), floats=floats, seed=5)
    length, _ = inputs.pop("length", None), others.pop("length", None)
    module = Together(list(encodings), subject.kind, list(inputs), length).eval()
    free = {name: Dim(name) for name in "bnk"}
    shapes = (tuple(sizes_of(name, free) for name in inputs),)
    program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes)
    exact = not floats and not list(module.parameters())
    # Conversion takes most of the time: that of real coordinates is left to the long form, but for rotations.
    onnx = LONG or not floats or subject.kind == "rotary"
    check_program(program, module, tuple(others.values()), exact, onnx)


def test_exact_phases_are_exact_in_onnx():
    rope = Together([mmpos.RoPE(16)], "rotary", ["coords"], None)
    coords = torch.tensor([[[2**31 - 1], [-(2**31)], [10**12]]])
    shapes = (({1: Dim("n")},),)
    program = torch.export.export(rope, (torch.arange(9)[None, :, None],), dynamic_shapes=shapes)
    for found, want in zip(run_onnx(program, (coords,)), rope(coords), strict=True):
        assert torch.equal(found, want)


TEXT = [
    {"rotary": {"name": "RoPE"}, "block": {"num_kv_heads": 1}},
    {"bias": {"name": "T5Bias"}, "scale": {"name": "SSMax"}, "window": 4, "separator": 0},
    {"additive": {"name": "Sinusoidal"}, "bias": {"name": "ALiBi"}, "num_classes": 5},
]


@pytest.mark.parametrize("slots", TEXT, ids=["rotary", "bias", "additive"])
def test_text_transformers_are_the_same_outside(slots):
    model = TextTransformer(num_tokens=50, dim=24, depth=1, num_heads=3, **slots).eval()
    shapes = ({0: Dim("b"), 1: Dim("n")},)
    program = torch.export.export(model, (torch.randint(50, (2, 9)),), dynamic_shapes=shapes)
    check_program(program, model, (torch.randint(50, (3, 21)),), exact=False)


IMAGES = [
    {"rotary": {"name": "RoPE", "axes": 2, "base": 100.0}, "class_token": True},
    {"bias": {"name": "ALiBi", "axes": 2}, "reg_tokens": 2},
    {"additive": {"name": "LearnedTable"}, "bias": {"name": "SwinBias"}, "class_token": True},
]


@pytest.mark.parametrize("slots", IMAGES, ids=["rotary", "bias", "tables"])
def test_vision_transformers_are_the_same_outside(slots):
    model = VisionTransformer(image_size=(8, 12), patch_size=2, dim=24, depth=1, num_heads=3, **slots).eval()
    grows = "additive" not in slots  # a table holds the grid that it was made for
    rows, columns = Dim("rows", max=64), Dim("columns", max=64)
    shapes = ({0: Dim("b"), 2: 2 * rows, 3: 2 * columns} if grows else {0: Dim("b")},)
    program = torch.export.export(model, (torch.randn(2, 1, 8, 12),), dynamic_shapes=shapes)
    check_program(program, model, (torch.randn(3, 1, 14, 6) if grows else torch.randn(3, 1, 8, 12),), exact=False)


SIZES = {
    "text, rotary and bias": (
        TextTransformer,
        {"rotary": {"name": "RoPE"}, "bias": {"name": "T5Bias"}, "separator": 0},
    ),
    "text, masks alone": (TextTransformer, {"window": 4, "separator": 0}),
    "images": (VisionTransformer, IMAGES[0]),
}


@pytest.mark.parametrize("kind, slots", SIZES.values(), ids=SIZES)
def test_a_model_is_compiled_once_for_all_sizes(kind, slots):
    own = {"num_tokens": 50} if kind is TextTransformer else {"image_size": (8, 12), "patch_size": 2}
    model = kind(dim=24, depth=1, num_heads=3, **own, **slots).eval()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    for b, height, width in ((2, 8, 12), (3, 14, 6)):
        inputs = torch.randint(50, (b, height)) if kind is TextTransformer else torch.randn(b, 1, height, width)
        with torch._dynamo.config.patch(error_on_recompile=b > 2):
            got = compiled(inputs)
        torch.testing.assert_close(got, model(inputs), rtol=1e-5, atol=1e-5)

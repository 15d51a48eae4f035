"""The biases of windows of timm (Swin V1, BEiT, Swin V2) and transformers (BEiT, Swin V2)."""

import pytest
import torch
from torch import nn

from mmpos import grid_coords
from mmpos.encodings.bias.continuous import ContinuousBias
from mmpos.encodings.bias.swin import SwinBias

HEADS = 6
WINDOWS = [(7, 7), (7, 5), (4, 9), (1, 6)]


def rel():
    return pytest.importorskip("timm.layers.pos_embed_rel", reason="needs timm")


def draw(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def with_table(window, table, **options):
    bias = SwinBias(table.shape[-1], window, **options)
    bias.load_state_dict({"weight": table})
    return bias


def with_prefix(bias, coords):
    """The bias with one prefix token in front."""
    n = len(coords)
    whole = torch.empty(bias.num_heads, n + 1, n + 1)
    whole[:, 1:, 1:] = bias(coords, coords)
    on_tokens, from_tokens, among = bias.prefix_bias()
    whole[:, 0, 1:], whole[:, 1:, 0], whole[:, 0, 0] = on_tokens[:, None], from_tokens[:, None], among
    return whole


@pytest.mark.parametrize("window", WINDOWS)
def test_timms_index(window):
    theirs = rel().gen_relative_position_index(window)
    rows = (2 * window[0] - 1) * (2 * window[1] - 1)
    bias = with_table(window, torch.arange(rows, dtype=torch.float32)[:, None])
    assert torch.equal(bias(grid_coords(*window), grid_coords(*window))[0].long(), theirs)


@pytest.mark.parametrize("window", WINDOWS)
def test_timms_index_with_a_class_token(window):
    theirs = rel().gen_relative_position_index(window, class_token=True)
    rows = (2 * window[0] - 1) * (2 * window[1] - 1) + 3
    bias = with_table(window, torch.arange(rows, dtype=torch.float32)[:, None], prefix=True)
    assert torch.equal(with_prefix(bias, grid_coords(*window))[0].long(), theirs)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("prefix", [False, True])
def test_timms_bias(window, prefix):
    theirs = draw(rel().RelPosBias(window, HEADS, prefix_tokens=int(prefix)))
    ours = with_table(window, theirs.relative_position_bias_table.detach(), prefix=prefix)
    coords = grid_coords(*window)
    got = with_prefix(ours, coords) if prefix else ours(coords, coords)
    assert torch.equal(got, theirs.get_bias()[0])


def test_gradients_of_timms_bias():
    theirs = draw(rel().RelPosBias((7, 5), HEADS))
    ours, weight = with_table((7, 5), theirs.relative_position_bias_table.detach()), torch.randn(HEADS, 35, 35)
    (theirs.get_bias()[0] * weight).sum().backward()
    (ours(grid_coords(7, 5), grid_coords(7, 5)) * weight).sum().backward()
    torch.testing.assert_close(
        ours.weight.grad.flatten(0, 1), theirs.relative_position_bias_table.grad, atol=2e-5, rtol=0
    )


def test_a_checkpoint_of_timms_swin():
    timm = pytest.importorskip("timm", reason="needs timm")
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=(96, 64), window_size=(6, 4), num_classes=0)
    for block in (swin.layers[0].blocks[0], swin.layers[1].blocks[1]):
        theirs = draw(block.attn)
        window = theirs.window_size
        ours = with_table(window, theirs.state_dict()["relative_position_bias_table"])
        assert torch.equal(ours(grid_coords(*window), grid_coords(*window)), theirs._get_rel_pos_bias()[0])


@pytest.mark.parametrize("image_size", [(48, 80), (64, 64)])
def test_transformers_beit(image_size):
    beit = pytest.importorskip("transformers.models.beit.modeling_beit", reason="needs transformers")
    config = beit.BeitConfig(image_size=image_size, patch_size=16, num_attention_heads=HEADS)
    theirs = draw(beit.BeitRelativePositionBias(config))
    window = theirs.window_size
    ours = with_table(window, theirs.relative_position_bias_table.detach(), prefix=True)
    # On rectangles theirs reads the table as columns x rows, which leaves it alone only where nothing is resized.
    square = window[0] == window[1]
    if square:
        assert torch.equal(with_prefix(ours, grid_coords(*window)), theirs(window)[0].detach())
    index = beit.BeitRelativePositionBias.generate_relative_position_index(window)
    want = theirs.relative_position_bias_table[index].permute(2, 0, 1)
    assert torch.equal(with_prefix(ours, grid_coords(*window)), want)


@pytest.mark.parametrize("new", [(12, 12), (9, 5), (4, 13)])
def test_timms_simple_resampling(new):
    table = torch.randn(13 * 13 + 3, HEADS)
    rows = (2 * new[0] - 1) * (2 * new[1] - 1) + 3
    theirs = rel().resize_rel_pos_bias_table_simple(table, new, (rows, HEADS))
    ours = with_table((7, 7), table, prefix=True).resize(*new)
    torch.testing.assert_close(ours.weight.flatten(0, 1), theirs[:-3], atol=2e-6, rtol=0)
    assert torch.equal(ours.prefix_weight, table[-3:])


@pytest.mark.parametrize("new", [12, 5])
def test_timms_resampling_of_levit(new):
    table = torch.randn(13 * 13, HEADS)
    theirs = rel().resize_rel_pos_bias_table_levit(table, ((2 * new - 1) ** 2, HEADS))
    ours = with_table((7, 7), table).resize(new, new, antialias=True)
    torch.testing.assert_close(ours.weight.flatten(0, 1), theirs, atol=2e-6, rtol=0)


@pytest.mark.filterwarnings("ignore::UserWarning:timm.layers.interpolate")
@pytest.mark.parametrize("old, new", [((7, 7), (12, 12)), ((7, 5), (9, 8))])
def test_beits_resampling(old, new):
    theirs = draw(rel().RelPosBias(old, HEADS, prefix_tokens=1))
    ours = with_table(old, theirs.relative_position_bias_table.detach(), prefix=True).resize(*new, mode="geometric")
    theirs.set_window_size(new)
    want = theirs.relative_position_bias_table.detach()
    torch.testing.assert_close(ours.weight.flatten(0, 1), want[:-3], atol=2e-5, rtol=0)
    assert torch.equal(ours.prefix_weight, want[-3:])


def identity(window, mode):
    """A bias whose network gives what it sees: one head for each axis."""
    bias = ContinuousBias(len(window), window, mode=mode, hidden_dim=2 * len(window))
    eye = torch.eye(len(window))
    first, last = torch.cat([eye, -eye]), torch.cat([eye, -eye], dim=1)
    for parameter, value in zip(bias.mlp.parameters(), (first, 0, last, 0), strict=mode == "cr"):
        parameter.data[:] = value
    return bias


@pytest.mark.parametrize("pretrained", [None, (8, 12)])
@pytest.mark.parametrize("window", [(7, 7), (7, 5), (2, 9)])
def test_timms_coordinates(window, pretrained):
    coords, origin = grid_coords(*(2 * side - 1 for side in window)), torch.tensor([[side - 1 for side in window]])
    raw = rel().gen_relative_log_coords(window, mode="cr").flatten(0, 1).T
    torch.testing.assert_close(identity(window, "cr")(coords, origin)[..., 0], raw, atol=2e-7, rtol=2e-7)
    theirs = rel().gen_relative_log_coords(window, pretrained or (0, 0), mode="swin").flatten(0, 1).T
    ours = identity(pretrained or window, "swin")(coords, origin)[..., 0]
    torch.testing.assert_close(ours, 16 * theirs.sigmoid(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("pretrained", [None, (8, 12)])
@pytest.mark.parametrize("mode", ["swin", "cr"])
@pytest.mark.parametrize("window", [(7, 7), (7, 5), (2, 9)])
def test_timms_network(window, mode, pretrained):
    theirs = draw(rel().RelPosMlp(window, HEADS, mode=mode, pretrained_window_size=pretrained or (0, 0))).eval()
    ours = ContinuousBias(HEADS, pretrained or window, mode=mode, hidden_dim=128)
    for own, other in zip(ours.mlp.parameters(), theirs.mlp.parameters(), strict=True):
        own.data.copy_(other.data)
    coords = grid_coords(*window)
    torch.testing.assert_close(ours(coords, coords), theirs.get_bias()[0], atol=5e-5, rtol=5e-6)


@pytest.mark.parametrize("pretrained", [None, (8, 12)])
@pytest.mark.parametrize("window", [(7, 7), (7, 5)])
def test_transformers_swin_v2(window, pretrained):
    swinv2 = pytest.importorskip("transformers.models.swinv2.modeling_swinv2", reason="needs transformers")
    config = swinv2.Swinv2Config(attn_implementation="eager")
    theirs = swinv2.Swinv2SelfAttention(config, 48, HEADS, window, list(pretrained or (0, 0))).eval()
    theirs.continuous_position_bias_mlp.apply(lambda module: draw(module) if isinstance(module, nn.Linear) else None)
    for content in (theirs.query, theirs.key):  # so that nothing but the bias is in the logits
        for parameter in content.parameters():
            nn.init.zeros_(parameter)
    ours = ContinuousBias(HEADS, pretrained or window)
    ours.mlp.load_state_dict(theirs.continuous_position_bias_mlp.state_dict())
    coords = grid_coords(*window)
    _, weights = theirs(torch.randn(1, len(coords), 48), output_attentions=True)
    torch.testing.assert_close(ours(coords, coords).softmax(-1), weights[0], atol=1e-5, rtol=2e-4)


def test_a_window_of_one_row_where_timm_divides_by_zero():
    assert rel().gen_relative_log_coords((1, 6)).isnan().any()
    ours, theirs = draw(ContinuousBias(HEADS, (1, 6))), rel().gen_relative_log_coords((2, 6))[1]  # its row 0
    coords = grid_coords(1, 6)
    got = ours(coords, coords)
    want = 16 * ours.mlp(theirs).sigmoid()
    for i in range(6):
        torch.testing.assert_close(got[:, i], want[[i - j + 5 for j in range(6)]].T, atol=5e-5, rtol=5e-6)

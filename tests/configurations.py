"""How each encoding of the factory is built in tests over all of them: several configurations of every one."""

from mmpos import Fourier, LearnableFourier, LearnedTable, Octaves, Sinusoidal
from mmpos.encodings.rotary import XPos
from mmpos.frequencies import Bands, Geometric, Harmonics, Periods, Seasons
from mmpos.scaling import DynamicNTK, LongRoPE, YaRN
from mmpos.spectra import Axial, Given, Learned, Mixed, Sections

CONFIGURATIONS = {
    "ALiBi": [
        {"num_heads": 5},
        {"num_heads": 12, "axes": 2, "metric": "euclidean", "per": (3.0, 7.5)},
        {"num_heads": 8, "axes": 3, "metric": "max", "learned": True},
    ],
    "Concat": [
        {"parts": [Sinusoidal(12), LearnableFourier(8, fourier_dim=6)], "on": [(1,), (0, 2)]},
        {"parts": [LearnedTable(3, 5), LearnedTable(4, (7, 5))], "on": [(0,), (1, 0)]},
        {"parts": [Fourier(num_bands=2, axes=2, include_coords=True), Sinusoidal(8, axes=2)]},
    ],
    "ContinuousBias": [
        {"num_heads": 3, "window": 9},
        {"num_heads": 5, "window": (7, 1), "mode": "linear", "hidden_dim": 16},
        {"num_heads": 4, "window": (3, 4, 2), "mode": "cr", "hidden_dim": 12},
    ],
    "CoordinateMLP": [
        {"dim": 10},
        {"dim": 7, "axes": 2, "hidden_dim": None},
        {"dim": 6, "axes": 3, "hidden_dim": 11},
    ],
    "ERPE": [{"num_heads": 3, "size": 17}, {"num_heads": 4, "size": (5, 3)}],
    "FIRE": [
        {"num_heads": 5, "threshold": 3000.0},
        {"num_heads": 3, "axes": 2, "hidden": 9, "threshold": 4.0, "metric": "euclidean"},
    ],
    "FactorizedTable": [{"dim": 10, "size": 17}, {"dim": 6, "size": (7, 5)}, {"dim": 5, "size": (3, 4, 2)}],
    "Fourier": [
        {"num_bands": 4},
        {"axes": 2, "num_bands": 3, "bands": Bands(14), "include_coords": True, "order": "wave band axis"},
        {
            "dim": 10,
            "axes": 3,
            "num_bands": 4,
            "bands": (Geometric(100.0), Octaves(times_pi=False), Bands(9, "octaves")),
        },
    ],
    "GaussianFourier": [
        {"dim": 12},
        {"dim": 10, "axes": 3, "sigma": 0.3, "learned": True},
        {"dim": 10, "axes": 1, "sigma": 2.0, "learned": True},
    ],
    "GroupBias": [{"num_heads": 5}, {"num_heads": 3, "axes": 3, "axis": 1}, {"num_heads": 4, "num_groups": 5}],
    "KERPLE": [
        {"num_heads": 5},
        {"num_heads": 6, "axes": 2, "kernel": "power", "metric": "euclidean"},
    ],
    "LearnableFourier": [
        {"dim": 10, "axes": 1, "fourier_dim": 6, "hidden_dim": 7},
        {"dim": 12, "axes": 2},
        {"dim": 12, "axes": 4, "groups": 2, "fourier_dim": 14, "hidden_dim": 9, "gamma": 3.0},
    ],
    "LearnedTable": [{"dim": 10, "size": 17}, {"dim": 6, "size": (7, 5)}, {"dim": 5, "size": (3, 4, 2)}],
    "LogScale": [
        {"train_length": 8},
        {"train_length": 4, "ratio": "plain", "axes": 2},
        {"train_length": 8, "coefficient": 0.1, "ratio": "stepped", "by": "position"},
    ],
    "PeriodicBias": [
        {"num_heads": 5, "periods": (24, 168.5), "harmonics": 3},
        {"num_heads": 3, "periods": ((7,), (12.25, 30)), "axes": 2, "harmonics": (2, 1, 3)},
    ],
    "RadialBasis": [
        {"period": 24.0, "centers": 5},
        {"dim": 7, "axes": 2, "period": None, "centers": (0, 100.5), "widths": (30, 700), "kernel": "exponential"},
        {"axes": 3, "period": 365.25, "centers": 4, "widths": 60.0, "kernel": "indicator"},
    ],
    "RelativeLogits": [
        {"num_heads": 3, "head_dim": 8, "extent": 5},
        {"num_heads": 3, "head_dim": 8, "extent": (4, 6), "beyond": "error", "per_head": True, "scale": 1.0},
        {"num_heads": 5, "head_dim": 6, "extent": (3, 2, 4), "ahead": (0, 2, 4), "beyond": "zero"},
        {"num_heads": 3, "extent": 5, "ahead": 0, "beyond": "zero", "rank": 4, "dim": 10},
    ],
    "RelativeSinusoids": [
        {"num_heads": 3, "head_dim": 5, "dim": 14},
        {"num_heads": 3, "head_dim": 4, "dim": 12, "axes": 2},
    ],
    "RoPE": [
        {"head_dim": 16},
        {"head_dim": 24, "axes": 2, "base": 100.0, "layout": "interleaved"},
        {"head_dim": 20, "axes": 3, "rotary_dim": 18},
        {"head_dim": 12, "axes": 2, "spectrum": Given(((1.0, 0.3, -0.2), (0.0, 0.5, 7.0)))},
        {"head_dim": 12, "axes": 2, "spectrum": Mixed(), "num_heads": 6, "num_kv_heads": 3, "layout": "interleaved"},
        {"head_dim": 14, "spectrum": Learned(), "num_heads": 5, "rotary_heads": 2},
        {"head_dim": 16, "axes": 3, "spectrum": Sections((2, 3, 3)), "scaling": (YaRN(4, 64), None, None)},
        {"head_dim": 14, "scaling": DynamicNTK(2, train_length=100)},
        {"head_dim": 12, "scaling": LongRoPE((1, 1, 1, 2, 3, 4), (1, 2, 3, 4, 5, 6), train_length=100, factor=4)},
        {"head_dim": 10, "xpos": XPos()},
        {"head_dim": 16, "axes": 2, "spectrum": Sections((5, 3), series=Seasons((24, 168), (3, 2), rest=Geometric()))},
    ],
    "HeadScale": [{"num_heads": 5}, {"num_heads": 3, "axes": 3}],
    "Seasonal": [
        {"periods": (24, 168.5), "harmonics": (3, 2)},
        {"dim": 11, "periods": ((7,), (12.25, 30)), "axes": 2, "harmonics": 2},
        {"periods": 24.0, "axes": 3, "harmonics": (2, 1, 3)},
    ],
    "SSMax": [{"num_heads": 5}, {"num_heads": 3, "axes": 3, "train_length": 64}],
    "Sandwich": [{"num_heads": 6, "dim": 16}],
    "Sinusoidal": [
        {"dim": 14},
        {"dim": 20, "axes": 2, "base": 100.0},
        {"dim": 5, "uneven": "odd"},
        {"dim": 10, "axes": 3, "uneven": "round_up"},
        {"dim": 16, "axes": 2, "layout": "axis_half", "cos_first": True, "spectrum": Axial(order=(1, 0))},
        {"dim": 13, "axes": 2, "layout": "half", "learned_scale": True, "spectrum": Given(((1, 0.3), (0, 0.5)))},
        {"dim": 8, "spectrum": Axial(series=Harmonics(24))},
    ],
    "Sum": [
        {"parts": [Sinusoidal(12), LearnedTable(12, (7, 5))], "on": [(0,), (1, 2)]},
        {"parts": [Sinusoidal(12, axes=2), Fourier(12, axes=2, num_bands=3)]},
    ],
    "SwinBias": [
        {"num_heads": 3, "window": 17},
        {"num_heads": 5, "window": (7, 5), "prefix": True},
        {"num_heads": 4, "window": (3, 4, 2)},
    ],
    "T5Bias": [
        {"num_heads": 5},
        {"num_heads": 3, "num_buckets": 16, "max_distance": 100, "bidirectional": False, "axes": 2},
        {"num_heads": 4, "axes": 3, "boundaries": (0.5, 7, 60.5)},
    ],
    "TAPE": [{"dim": 14}],
    "Time2Vec": [{"dim": 9}, {"dim": 2, "start": Periods(1, 100), "wave": "cosine"}],
}

"""The backward page: gradients against central differences and against torch."""

import numpy as np
import pytest
from helpers.peers import torch
from helpers.random_models import random_model
from helpers.transformers_pass import transformers_model

from gpt2np.checkpoint.config import ACTIVATION_FUNCTIONS, LM_HEAD
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import chain, replace, scale
from gpt2np.interp.gradients import GradientProbe
from gpt2np.model.backward import gpt2_backward
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.hook_points import hook_point_names
from gpt2np.model.ops import cross_entropy
from gpt2np.model.plain import arrange_arrays, plain_weights
from gpt2np.model.tape import Tape


def random_config(seed):
    rng = np.random.default_rng(seed)
    n_head = int(rng.integers(1, 5))
    return {
        "n_head": n_head,
        "n_embd": n_head * int(rng.integers(1, 9)),
        "n_inner": int(rng.integers(1, 40)),
        "n_layer": int(rng.integers(1, 4)),
        "vocab_size": int(rng.integers(2, 50)),
        "n_positions": 200,
        "activation_function": ACTIVATION_FUNCTIONS[seed % len(ACTIVATION_FUNCTIONS)],
        "scale_attn_weights": bool(rng.integers(2)),
        "scale_attn_by_inverse_layer_idx": bool(rng.integers(2)),
        "layer_norm_epsilon": float(rng.choice([1e-5, 1e-3])),
        "tied": bool(rng.integers(2)),
    }


def random_texts(config, seed, lengths=None):
    rng = np.random.default_rng(seed)
    lengths = lengths or rng.integers(2, 9, rng.integers(1, 4))
    return [rng.integers(0, config.vocab_size, n + 1) for n in lengths]


def weight_gradients(model, texts, dtype, **options):
    """Return the mean loss and the gradients of the weights, by the page."""
    gradients = {}
    context = Tape(model.config, [ids[:-1] for ids in texts], weight_gradients=gradients, **options)
    arrays = {name: array.astype(dtype) for name, array in model.weights.items()}
    w = arrange_arrays(model.config, arrays)
    logits = gpt2(context, w)
    targets = np.concatenate([ids[1:] for ids in texts])
    losses = cross_entropy(logits, targets, 1 / len(targets))
    gpt2_backward(context, w, logits)
    return losses.mean(), gradients


def torch_gradients(model, texts, dtype):
    """Return the mean loss and the gradients of the weights, by torch."""
    reference = transformers_model(model).to(dtype)
    losses = [
        torch.nn.functional.cross_entropy(
            reference(torch.tensor(ids[None, :-1])).logits[0],
            torch.tensor(ids[1:]),
            reduction="sum",
        )
        for ids in texts
    ]
    loss = sum(losses) / sum(len(ids) - 1 for ids in texts)
    loss.backward()
    return loss.item(), {
        name.removeprefix("transformer."): parameter.grad.numpy()
        for name, parameter in reference.named_parameters()
    }


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("seed", [*range(14), *map(slow, range(14, 60))])  # each activation twice
def test_weights_against_torch_in_float64(seed):
    model = random_model(np.float64, **random_config(seed))
    texts = random_texts(model.config, seed)
    expected_loss, expected = torch_gradients(model, texts, torch.float64)
    for max_bytes in (0, 1 << 30):  # recomputed, kept
        loss, found = weight_gradients(model, texts, np.float64, max_bytes=max_bytes)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            largest = max(np.abs(gradient).max(), 1e-6)  # some are 0 but for rounding
            assert np.abs(found[name] - gradient).max() <= 1e-9 * largest, name


def float32_errors(model, texts):
    """Return (ours, torch's) squared errors against float64, after a check of each entry."""
    _, exact = weight_gradients(model, texts, np.float64)
    _, theirs = torch_gradients(model, texts, torch.float32)
    _, ours = weight_gradients(model, texts, np.float32)
    errors = np.zeros(2)
    for name, gradient in exact.items():
        assert ours[name].dtype == np.float32
        largest = max(np.abs(gradient).max(), 1e-6)
        # Torch's own error can be larger: 2.5e-4 with 2 channels.
        distances = [np.abs(ours[name] - x).max() for x in (theirs[name], gradient)]
        assert min(distances) <= 1e-4 * largest, name
        errors += [np.square((x[name] - gradient) / largest).sum() for x in (ours, theirs)]
    return errors


LARGER = {"n_embd": 96, "n_head": 4, "n_inner": 384, "n_layer": 2, "vocab_size": 300}


@pytest.mark.parametrize(("shape", "n"), [({}, 6), slow({}, 60), (LARGER, 3)], ids=str)
def test_float32_is_as_accurate_as_torch(shape, n):
    errors = np.zeros(2)
    for seed in range(n):
        model = random_model(np.float32, **(random_config(seed) | shape))
        errors += float32_errors(model, random_texts(model.config, seed))
    assert np.sqrt(errors[0]) <= 1.15 * np.sqrt(errors[1])


class Nudge:
    """A hook that adds a step to one array."""

    def __init__(self, name, step):
        self.name, self.step = name, step

    def __call__(self, name, array):
        return array + self.step if name == self.name else array


@pytest.mark.parametrize("seed", [1, 3, 5, *(slow(i) for i in range(60) if i not in (1, 3, 5))])
def test_hook_points_and_weights_against_central_differences(seed):
    config = random_config(seed)
    model = random_model(np.float64, **config | {"n_layer": min(config["n_layer"], 2)})
    rng = np.random.default_rng(seed)
    [ids] = random_texts(model.config, seed, [5])
    v = rng.normal(size=(len(ids), model.config.vocab_size))  # the loss is v · logits
    probe, weights = GradientProbe(), {}
    context = Tape(model.config, [ids], hook=probe, weight_gradients=weights)
    w = plain_weights(model)
    loss = np.abs(v * gpt2(context, w)).sum()
    gpt2_backward(context, w, v.copy())
    found = probe.found
    assert next(iter(found)) == "logits"
    assert set(found) == set(hook_point_names(model.config.n_layer))

    # relu has a kink, so its steps are shorter; twice the step removes the third derivative
    size = 1e-7 if model.config.activation_function == "relu" else 1e-5

    def check(gradient, loss_at):
        direction = rng.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        one, two = (loss_at(n * size * direction) - loss_at(-n * size * direction) for n in (1, 2))
        error = abs((8 * one - two) / (12 * size) - np.sum(gradient * direction))
        assert error <= 1e-6 * np.linalg.norm(gradient) + 4e-15 * loss / size  # of the rounding

    for name, gradient in found.items():
        check(
            gradient,
            lambda step, name=name: np.sum(v * model.forward([ids], hook=Nudge(name, step))),
        )
    arrays = dict(model.weights)
    for name, gradient in weights.items():

        def loss_at(step, name=name):
            changed = arrange_arrays(model.config, arrays | {name: arrays[name] + step})
            return np.sum(v * gpt2(Tape(model.config, [ids]), changed))

        check(gradient, loss_at)


def test_packed_texts_equal_single_texts():
    model = random_model(np.float64, n_embd=24, n_head=3, n_layer=2, vocab_size=30, n_positions=400)
    texts = random_texts(model.config, 0, [300, 7, 130])  # longer than a block of queries
    _, packed = weight_gradients(model, texts, np.float64)
    singles = [weight_gradients(model, [ids], np.float64)[1] for ids in texts]
    lengths = [len(ids) - 1 for ids in texts]
    for name, gradient in packed.items():
        expected = np.average([single[name] for single in singles], axis=0, weights=lengths)
        np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_gradients_pass_through_interventions():
    """A replaced array passes no gradient back; a scaled one, the scaled gradient."""
    model = random_model(np.float64, n_embd=8, n_head=2, n_layer=2, vocab_size=9, n_positions=20)
    ids, v = [1, 2, 3, 4], np.zeros((4, 9))
    v[-1, 5] = 1.0

    def embed_gradient(hook):
        probe = GradientProbe()
        context = Tape(model.config, [ids], hook=chain(hook, probe), max_bytes=0)
        w = plain_weights(model)
        gpt2(context, w)
        gpt2_backward(context, w, v.copy())
        return probe.found["embed"]

    hook = chain(
        scale("blocks.0.attn.pattern", 1.5, heads=1),
        scale("blocks.0.attn.k", 0.5),
        replace("blocks.0.mlp.act", 0.1, positions=[0, 2]),
        scale("blocks.1.attn.z", 2.0, positions=-1),
    )
    gradient, direction = embed_gradient(hook), np.random.default_rng(0).normal(size=(4, 8))
    values = [
        model.forward([ids], hook=chain(Nudge("embed", size * direction), hook))[-1, 5]
        for size in (1e-6, -1e-6)
    ]
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(np.sum(gradient * direction), rel=1e-6)
    assert not embed_gradient(replace("blocks.1.resid", 0.0)).any()
    with pytest.raises(InvalidArgumentError, match=r"the hook edits embed, but has no method"):
        embed_gradient(lambda name, array: array * 2)


def test_an_untied_head_has_its_own_gradient():
    model = random_model(np.float64, n_embd=8, n_head=2, n_layer=1, vocab_size=9, tied=False)
    _, found = weight_gradients(model, [np.array([1, 2, 3])], np.float64)
    assert not found["wte.weight"][3:].any() and found[LM_HEAD][3:].any()

"""Two loads of one engine share it; loads of different ones never do; each answers as OpenVINO itself does."""

import contextlib
import gc
import itertools
import weakref

import fresh
import host
import numpy as np
import pytest


def counts(there):
    host.collect()
    stats = there.tandem.stats()
    return stats.engines, stats.loads, stats.builds, stats.hits


@pytest.mark.fresh
def test_two_loads_of_one_path_share_one_engine(models):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    one, two = there.load(models.mlp), there.load(models.mlp)
    assert counts(there) == (1, 2, 1, 1)
    stats = there.tandem.stats()
    assert stats.bytes_saved == stats.bytes_held > 100_000
    for _ in range(5):
        host.same(one(*inputs), wanted)
        host.same(two(*inputs), wanted)
    del one, two
    assert counts(there) == (0, 0, 1, 1)


@pytest.mark.fresh
def test_loads_of_bytes_share_with_loads_of_a_path(models):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    loads = [there.load(models.mlp.bytes), there.load(models.mlp), there.load(bytearray(models.mlp.bytes))]
    assert counts(there) == (1, 3, 1, 2)
    for load in loads:
        host.same(load(*inputs), wanted)


@pytest.mark.fresh
def test_two_files_of_equal_content_share(models, tmp_path):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    copy = tmp_path / "copy.pte"
    copy.write_bytes(models.mlp.bytes)
    one, two = there.load(copy), there.load(models.mlp)
    assert counts(there) == (1, 2, 1, 1)
    host.same(one(*inputs), wanted)
    host.same(two(*inputs), wanted)


@pytest.mark.fresh
@pytest.mark.parametrize("order", [("mlp", "mlp_other"), ("mlp_other", "mlp")])
def test_other_weights_under_the_same_names_and_sizes_are_another_engine(models, order):
    """Field case 11."""
    there = host.tandem()
    assert models.mlp.path.stat().st_size == models.mlp_other.path.stat().st_size
    loads = {name: there.load(getattr(models, name)) for name in order}
    assert counts(there) == (2, 2, 2, 0)
    answers = {}
    for name, load in loads.items():
        inputs, wanted = getattr(models, name).case()
        answers[name] = load(*inputs)
        host.same(answers[name], wanted)
    assert not np.array_equal(answers["mlp"][0], answers["mlp_other"][0])


@pytest.mark.fresh
@pytest.mark.parametrize("order", [("mlp", "mlp_one_bit"), ("mlp_one_bit", "mlp")])
def test_one_other_bit_is_another_engine(models, order):
    """Field case 11, its second pair."""
    there = host.tandem()
    assert sum(a != b for a, b in zip(models.mlp.bytes, models.mlp_one_bit.bytes, strict=True)) == 1
    for name, load in [(name, there.load(getattr(models, name))) for name in order]:
        inputs, wanted = getattr(models, name).case()
        host.same(load(*inputs), wanted)
        assert there.tandem.stats().engines == 2


@pytest.mark.fresh
@pytest.mark.parametrize("place", [0, 40, 0.5, 0.99, -1])
def test_no_byte_of_a_payload_is_left_out_of_its_identity(models, payload_of_mlp, tmp_path, place):
    """Whether OpenVINO takes the edited payload or refuses it, it never gets the engine of the other."""
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    healthy = there.load(models.mlp)
    edited = bytearray(payload_of_mlp)
    edited[int(place * len(edited)) if isinstance(place, float) else place] ^= 1
    path = tmp_path / "edited.pte"
    path.write_bytes(models.mlp.bytes.replace(payload_of_mlp, edited))
    assert path.read_bytes() != models.mlp.bytes
    with contextlib.suppress(RuntimeError):
        there.load(path)
    assert there.tandem.stats().hits == 0
    host.same(healthy(*inputs), wanted)


@pytest.mark.fresh
def test_loads_may_go_in_every_order(models):
    """Field case 03."""
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    for rounds, order in enumerate(itertools.permutations(range(3)), 1):
        loads = [there.load(models.mlp) for _ in range(3)]
        for gone in order:
            loads[gone] = None
            host.collect()
            for load in filter(None, loads):
                for _ in range(100):
                    host.same(load(*inputs), wanted)
            load = None
        assert counts(there) == (0, 0, rounds, 2 * rounds)


@pytest.mark.fresh
def test_first_program_is_collected_before_the_second_runs(models):
    there = host.tandem()
    inputs, wanted = models.embedding.case()
    first = there.load(models.embedding)
    second = there.load(models.embedding)
    gone = weakref.ref(first.program)
    del first
    gc.collect()
    assert gone() is None
    for _ in range(20):
        host.same(second(*inputs), wanted)
    assert counts(there) == (1, 1, 1, 1)


@pytest.mark.fresh
def test_the_methods_of_a_program_have_their_engines(models):
    there = host.tandem()
    program = there.program(models.multimethod)
    assert program.method_names == {"forward", "embed"}
    for again in range(2):
        loads = []
        for method in ("forward", "embed"):
            inputs, wanted = models.multimethod.case(method)
            loads.append(there.load(models.multimethod, method))
            host.same(loads[-1](*inputs), wanted)
        assert counts(there)[:2] == (2, 2)
        assert counts(there)[2] == 2 * (again + 1)
        del loads, inputs, wanted


@pytest.mark.fresh
def test_a_method_with_two_delegates_shares_both(models):
    there = host.tandem()
    inputs, wanted = models.chain.case()
    one, two = there.load(models.chain), there.load(models.chain)
    assert counts(there) == (2, 4, 2, 2)
    del one
    gc.collect()
    host.same(two(*inputs), wanted)
    assert counts(there)[:2] == (2, 2)


@pytest.mark.fresh
def test_constants_outside_the_program_stand_beside_delegates(models):
    there = host.tandem()
    inputs, wanted = models.chain_external.case()
    data = models.folder / "_default_external_constant.ptd"
    loads = [there.load(models.chain_external, data_path=data) for _ in range(2)]
    for load in loads:
        host.same(load(*inputs), wanted)
    assert counts(there) == (2, 4, 2, 2)
    with pytest.raises(RuntimeError):
        there.load(models.chain_external)
    assert counts(there)[:2] == (2, 4), "a method that failed to load keeps nothing"


@pytest.mark.fresh
def test_dynamic_outputs_have_their_real_shape(models):
    there = host.tandem()
    one, two = there.load(models.mlp_dynamic), there.load(models.mlp_dynamic)
    for count in (4, 1, 32, 4):
        inputs, wanted = models.mlp_dynamic.case(f"forward{count}")
        assert wanted[0].shape == (count, 10)
        host.same(one(*inputs), wanted)
        host.same(two(*inputs), wanted)
    assert counts(there)[0] == 1


@pytest.mark.fresh
def test_a_shape_outside_the_bounds_leaves_both_loads_usable(models):
    """Field case 25."""
    there = host.tandem()
    one, two = there.load(models.mlp_dynamic), there.load(models.mlp_dynamic)
    inputs, wanted = models.mlp_dynamic.case("forward32")
    wrong = [np.zeros((33, 64), np.float32), np.zeros((4, 63), np.float32), np.zeros((2, 2, 64), np.float32)]
    for bad in [*wrong, np.zeros((4, 64), np.float64)]:
        with pytest.raises(RuntimeError):
            one(bad)
        host.same(two(*inputs), wanted)
        host.same(one(*inputs), wanted)


@pytest.mark.fresh
def test_every_type_of_element_arrives_as_it_is(models):
    there = host.tandem()
    inputs, wanted = models.dtypes.case()
    assert {value.dtype.name for value in inputs} == {
        "bool", "uint8", "int8", "int32", "int64", "float16", "float64",
    }
    for load in (there.load(models.dtypes), there.load(models.dtypes)):
        host.same(load(*inputs), wanted)
    assert there.tandem.stats().engines == 1


@pytest.mark.fresh
def test_views_give_the_same_numbers_or_an_error(models):
    """Field case 23, through Python."""
    import torch

    there = host.tandem()
    load = there.load(models.convolution)
    (plain,), wanted = models.convolution.case()
    image = torch.from_numpy(plain)
    wide = torch.zeros(2, 3, 8, 12)
    wide[..., 3:9] = image
    stacked = torch.cat([torch.zeros(1, 3, 8, 6), image])
    turned = image.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    refused = []
    for name, value, answer in [
        ("contiguous", image, wanted[0]),
        ("contiguous at an offset", stacked[1:], wanted[0]),
        ("sliced", wide[..., 3:9], wanted[0]),
        ("permuted", turned, wanted[0]),
        ("expanded", image[:1].expand(2, -1, -1, -1), None),
    ]:
        try:
            found = load(value)
        except RuntimeError:
            refused.append(name)
        else:
            host.same(found, [answer])
        host.same(load(image), wanted)
    assert not any(name.startswith("contiguous") for name in refused)


@pytest.mark.fresh
def test_channels_last_is_lost_before_a_delegate_sees_it(models):
    """Field case 23: ExecuTorch's Python extension copies the bytes of such an input into a contiguous one, with
    its own kernels just as with a delegate. When that is mended upstream this test says so."""
    import torch

    there = host.tandem()
    (plain,), wanted = models.convolution.case()
    image = torch.from_numpy(plain)
    bytes_as_they_lie = image.permute(0, 2, 3, 1).contiguous().view(2, 3, 8, 6)
    kernels, delegate = there.load(models.convolution_portable), there.load(models.convolution)
    np.testing.assert_allclose(kernels(image)[0], wanted[0], atol=0.05)
    host.same(delegate(image), wanted)
    for load in kernels, delegate:
        host.same(load(image.to(memory_format=torch.channels_last)), load(bytes_as_they_lie))


def run_channels_last(models):
    import torch

    there = host.tandem()
    (plain,), _ = models.convolution.case()
    load = there.load(models.convolution_last)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            load(torch.from_numpy(plain).to(memory_format=torch.channels_last))


def test_a_program_for_channels_last_is_refused_by_the_name_of_its_tensor(models):
    """Field case 23: here the delegate does see the layout."""
    outcome = fresh.run(run_channels_last, models)
    outcome.good()
    lines = [line for line in outcome.errors.splitlines() if line.startswith("tandem:")]
    assert len(lines) == 2, outcome.errors
    (plain,), _ = models.convolution.case()
    for line in lines:
        assert "put" in line and "stride" in line, line


@pytest.mark.fresh
def test_state_belongs_to_the_load(models):
    there = host.tandem()
    (x,), steps = models.state.case()
    one, two = there.load(models.state), there.load(models.state)
    assert counts(there)[:2] == (1, 2)
    for step in range(2):
        host.same(one(x), [steps[step]])
    host.same(two(x), [steps[0]])
    host.same(one(x), [steps[2]])
    three = there.load(models.state)
    host.same(three(x), [steps[0]])
    assert counts(there)[:2] == (1, 3)

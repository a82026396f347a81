"""Options from compile specs and from the process, in their order, as they act on loads of the stock runtime."""

import host
import numpy as np
import pytest

PRIVATE, SHARED = (2, 2), (1, 2)


def engines_of_two(there, model):
    """Engines and loads while two loads of a model live; both answer right."""
    inputs, wanted = model.case()
    loads = [there.load(model) for _ in range(2)]
    for load in loads:
        host.same(load(*inputs), wanted)
    stats = there.tandem.stats()
    return stats.engines, stats.loads


@pytest.mark.fresh
def test_a_compile_spec_beats_the_process_and_the_process_beats_the_default(models):
    there = host.tandem()
    assert there.tandem.get_option("use_shared_engines") == "true"
    assert engines_of_two(there, models.mlp) == SHARED
    assert engines_of_two(there, models.spec_private) == PRIVATE

    assert there.tandem.set_option("use_shared_engines", "1") == (host.OK, "")
    assert there.tandem.get_option("use_shared_engines") == "true"
    assert engines_of_two(there, models.spec_private) == PRIVATE, "the compile spec is stronger"

    assert there.tandem.set_option("use_shared_engines", "false") == (host.OK, "")
    assert there.tandem.get_option("use_shared_engines") == "false"
    assert engines_of_two(there, models.mlp) == PRIVATE
    assert engines_of_two(there, models.spec_shared) == PRIVATE, "an operator's explicit false is stronger still"

    assert there.tandem.set_option("use_shared_engines", None) == (host.OK, "")
    assert there.tandem.get_option("use_shared_engines") == "true"
    assert engines_of_two(there, models.mlp) == SHARED
    assert engines_of_two(there, models.spec_shared) == SHARED


@pytest.mark.fresh(environment={"TANDEM_OPT_USE_SHARED_ENGINES": "false"})
def test_the_environment_is_the_weakest(models):
    there = host.tandem()
    assert there.tandem.get_option("use_shared_engines") == "false"
    assert engines_of_two(there, models.mlp) == PRIVATE
    assert engines_of_two(there, models.spec_shared) == SHARED
    there.tandem.set_option("use_shared_engines", "true")
    assert engines_of_two(there, models.mlp) == SHARED


@pytest.mark.fresh
def test_options_that_change_the_engine_are_part_of_its_identity(models):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    plain = there.load(models.mlp)
    assert there.tandem.set_option("precision", "f32") == (host.OK, "")
    exact, again = there.load(models.mlp), there.load(models.mlp)
    assert (there.tandem.stats().engines, there.tandem.stats().loads) == (2, 3)
    host.same(plain(*inputs), wanted)
    host.same(exact(*inputs), again(*inputs))
    np.testing.assert_allclose(exact(*inputs)[0], wanted[0], atol=0.02)


@pytest.mark.fresh
def test_options_of_a_load_alone_do_not_part_engines(models):
    there = host.tandem()
    loads = [there.load(models.mlp)]
    for key, value in [("flight_timeout_ms", "500"), ("payload_bytes", "copy"), ("log_level", "error")]:
        assert there.tandem.set_option(key, value) == (host.OK, "")
        assert there.tandem.get_option(key) == value
        loads.append(there.load(models.mlp))
    assert (there.tandem.stats().engines, there.tandem.stats().loads) == (1, 4)


@pytest.mark.fresh
def test_trust_domains_do_not_share(models):
    there = host.tandem()
    loads = [there.load(models.mlp)]
    there.tandem.set_option("trust_domain", "other")
    loads += [there.load(models.mlp), there.load(models.mlp)]
    assert (there.tandem.stats().engines, there.tandem.stats().loads) == (2, 3)


@pytest.mark.fresh
def test_a_wrong_option_is_named_and_nothing_is_applied(models):
    there = host.tandem()
    for key, value in [("use_shared_engine", "true"), ("use_shared_engines", "maybe"), ("num_threads", "-1")]:
        code, message = there.tandem.set_option(key, value)
        assert code == host.BAD_OPTION and key in message, message
        assert value in message or key == "use_shared_engine", message
    code, message = there.tandem.set_option("use_shared_engines", "true", backend="NoSuchBackend")
    assert code == host.NOT_FOUND and "NoSuchBackend" in message
    assert there.tandem.get_option("use_shared_engines") == "true"
    assert engines_of_two(there, models.mlp) == SHARED


@pytest.mark.fresh
def test_other_engine_bytes_than_expected_are_refused(models):
    there = host.tandem()
    there.tandem.set_option("expect_sha256", "0" * 64)
    with pytest.raises(RuntimeError):
        there.load(models.mlp)
    there.tandem.set_option("expect_sha256", None)
    assert there.load(models.mlp)
    assert there.tandem.stats().failures == 1

"""Options belong to the task or thread that asked for them, for the loads made inside, through both runtimes."""

import asyncio
import contextlib
import threading

import doors
import pytest

pytestmark = pytest.mark.fresh
both = pytest.mark.parametrize("kind", ["own", "stock"])


def begin(kind, library):
    return doors.open_door(kind), doors.Fake(library)


@both
def test_options_reach_the_loads_made_inside_and_no_others(kind, fake_library, fake_programs):
    door, fake = begin(kind, fake_library)
    path = fake_programs / "one.pte"
    before = door.load(path)
    with door.tandem.options(use_shared_engines=False):
        inside = [door.load(path), door.load(path)]
    after = door.load(path)
    assert fake.count(doors.BUILD) == 3
    assert door.tandem.stats().engines == 3 and door.tandem.stats().hits == 1
    del before, inside, after


@both
def test_a_load_that_an_option_refuses_fails_and_the_next_one_does_not(kind, fake_library, fake_programs):
    door, fake = begin(kind, fake_library)
    with door.tandem.options(expect_sha256="0" * 64), pytest.raises(RuntimeError):
        door.load(fake_programs / "one.pte")
    assert fake.count(doors.BUILD) == 0
    door.load(fake_programs / "one.pte")


@both
def test_a_thread_s_options_are_not_another_s(kind, fake_library, fake_programs):
    door, fake = begin(kind, fake_library)
    path = fake_programs / "one.pte"
    entered, loaded = threading.Event(), threading.Event()

    def with_options():
        with door.tandem.options(trust_domain="left"):
            entered.set()
            assert loaded.wait(20)
            return door.load(path)

    def without():
        assert entered.wait(20)
        try:
            return door.load(path), door.tandem.get_option("trust_domain")
        finally:
            loaded.set()

    with door.tandem.options(trust_domain="outer"):  # a new thread does not inherit
        _, (_, domain) = doors.in_threads(with_options, without)
    assert domain == ""
    assert fake.count(doors.BUILD) == 2


@both
def test_tasks_of_one_thread_keep_their_options_across_awaits(kind, fake_library, fake_programs):
    door, fake = begin(kind, fake_library)
    path, kept = fake_programs / "one.pte", []

    async def load(domain, mine, others):
        with door.tandem.options(trust_domain=domain):
            mine.set()
            await others.wait()  # now the other task is inside its own block
            kept.append(door.load(path))
            await asyncio.sleep(0)
            found = [door.tandem.get_option("trust_domain")]
            found.append(await asyncio.to_thread(door.tandem.get_option, "trust_domain"))
            kept.append(await asyncio.to_thread(door.load, path))
            found.append(await asyncio.create_task(inherit()))
        return [*found, door.tandem.get_option("trust_domain")]

    async def inherit():
        return door.tandem.get_option("trust_domain")

    async def main():
        left, right = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(load("left", left, right), load("right", right, left))

    assert asyncio.run(main()) == [["left", "left", "left", ""], ["right", "right", "right", ""]]
    assert fake.count(doors.BUILD) == 2 and door.tandem.stats().loads == 4


def test_blocks_nest_and_the_inner_one_wins(fake_library):
    door, _ = begin("own", fake_library)
    options, get = door.tandem.options, door.tandem.get_option
    with options(cuda_graph=True, profile=3):
        with options(use_cuda_graphs=False), options({"trust_domain": "x"}):
            assert (get("cuda_graph"), get("profile"), get("trust_domain")) == (False, 3, "x")
        assert (get("cuda_graph"), get("profile"), get("trust_domain")) == (True, 3, "")
        with contextlib.suppress(KeyError), options(profile=4):
            raise KeyError
        assert get("profile") == 3
    assert get("profile") == 0


def test_blocks_may_be_left_in_another_order_and_entered_again(fake_library):
    door, _ = begin("own", fake_library)
    get = door.tandem.get_option
    first, second = door.tandem.options(profile=1), door.tandem.options(profile=2)
    with first, first, second:
        first.__exit__(None, None, None)
        assert get("profile") == 2
        second.__exit__(None, None, None)
        assert get("profile") == 1
        first.__exit__(None, None, None)
        assert get("profile") == 0
    with second:
        assert get("profile") == 2


def test_as_a_decorator_they_count_for_each_call(fake_library):
    door, _ = begin("own", fake_library)
    get = door.tandem.get_option

    @door.tandem.options(profile=5)
    def look(depth):
        """Looks."""
        return [get("profile"), *(look(depth - 1) if depth else [])]

    @door.tandem.options(profile=6)
    async def look_later():
        await asyncio.sleep(0)
        return get("profile")

    assert look(1) == [5, 5] and look.__doc__ == "Looks."
    assert doors.in_threads(lambda: look(0), lambda: look(0)) == [[5], [5]]
    assert asyncio.run(look_later()) == 6
    assert get("profile") == 0
    with pytest.raises(TypeError, match="generator"):

        @door.tandem.options(profile=5)
        def numbers():
            yield get("profile")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"no_such_option": 1}, "'no_such_option' is unknown"),
        ({"profile": -1}, "'profile': expected auto or decimal digits up to 2147483647, found '-1'"),
        ({"cuda_graph": "yes"}, "'cuda_graph': expected true, false, 1 or 0, found 'yes'"),
        ({"profile": 1.5}, "'profile': expected bool, int or str, found float"),
        ({"profile": None}, "'profile': expected bool, int or str, found NoneType"),
        ({"trust_domain": "a\0b"}, "option 'trust_domain': a NUL is in"),
        ({"trust_domain": "\ud800"}, "option 'trust_domain': '\\ud800' cannot be encoded"),
        ({"trust_domain": "x" * 256}, "'trust_domain': expected text of at most 255 bytes"),
        ({"cuda_graph": True, "use_cuda_graphs": True}, "'cuda_graph' is given twice"),
        ({"flight_timeout_ms": 10**30}, "'flight_timeout_ms': expected decimal digits"),
    ],
)
def test_a_refused_option_is_named_and_nothing_is_applied(values, message, fake_library):
    door, _ = begin("own", fake_library)
    with pytest.raises(door.tandem.BadOptionError) as raised:
        door.tandem.options(values)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert isinstance(raised.value, ValueError)
    if len(values) == 1:
        ((name, value),) = values.items()
        if value is not None:
            with pytest.raises(door.tandem.BadOptionError):
                door.tandem.set_option(name, value)
    assert door.tandem.get_option("profile") == 0 and door.tandem.get_option("cuda_graph") is False


@pytest.mark.fresh(environment={"TANDEM_OPT_PROFILE": "1"})
def test_the_strongest_source_wins(fake_library, fake_programs):
    door, fake = begin("own", fake_library)
    tandem = door.tandem
    assert tandem.get_option("profile") == 1
    tandem.set_option("profile", 2)
    assert tandem.get_option("profile") == 2
    tandem.set_option("profile", 3, backend="FakeBackend")
    assert (tandem.get_option("profile", "fake"), tandem.get_option("profile", "OpenvinoBackend")) == (3, 2)
    with tandem.options(profile=4):
        assert tandem.get_option("profile", "fake") == 4
        with tandem.options(use_shared_engines=False):
            program = door.runtime.load_program(fake_programs / "one.pte")
            kept = [program.load_method("forward", use_shared_engines=True) for _ in range(2)]
            assert fake.count(doors.BUILD) == 1 and [method.info[0].shared for method in kept] == [False, True]
    for backend in ("FakeBackend", None):
        tandem.set_option("profile", None, backend=backend)
    assert tandem.get_option("profile", "fake") == 1


def test_options_of_a_backend_are_set_and_told_by_its_names(fake_library):
    door, _ = begin("own", fake_library)
    tandem = door.tandem
    tandem.set_option("num_threads", 2, backend="openvino")
    assert tandem.get_option("num_threads", "OpenvinoBackend") == 2
    assert tandem.get_option("precision", "openvino") == "auto"
    for call in (lambda: tandem.set_option("profile", 1, "nobody"), lambda: tandem.get_option("profile", "nobody")):
        with pytest.raises(tandem.NotFoundError, match="nobody"):
            call()
    with pytest.raises(tandem.InvalidArgumentError, match="backend: a NUL"):
        tandem.set_option("log_level", "error", backend="OpenvinoBackend\0of another")
    with pytest.raises(tandem.BadOptionError, match="num_threads"):
        tandem.get_option("num_threads")
    with pytest.raises(tandem.BadOptionError, match="num_streams"):
        tandem.set_option("num_streams", 1, backend="TensorRTBackend")

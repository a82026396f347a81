"""Programs that have tensors channels last: whatever layout goes in, rows come out, with the right numbers.

Field case 23. The stock runtime takes the bytes of an input as they lie.
"""

import doors
import numpy as np
import pytest


def layouts_of(image):
    """Arrays and tensors with the elements of `image` at the same places, by name."""
    import torch

    last = np.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    wide = np.repeat(last, 2, axis=3)
    found = {
        "rows": image,
        "channels last": last,
        "permuted": np.ascontiguousarray(image.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0),
        "sliced": wide[..., ::2],
        "at an offset": np.concatenate([image[:, :1], image], 1)[:, 1:],
        "backwards": np.ascontiguousarray(image[..., ::-1])[..., ::-1],
        "torch": torch.from_numpy(image),
        "torch, channels last": torch.from_numpy(image).to(memory_format=torch.channels_last),
    }
    for value in found.values():
        np.testing.assert_array_equal(np.asarray(value), image)
    return found


@pytest.mark.fresh
def test_every_layout_of_an_input_gives_the_same_numbers(data):
    method = doors.open_door("own").load(data / "channels.pte").method
    for count in (3, 1, 4):
        last, rows = np.random.default_rng(count).normal(size=(2, count, 2, 3, 4)).astype(np.float32)
        for (name, one), other in zip(layouts_of(last).items(), reversed(layouts_of(rows).values()), strict=True):
            outputs = method.execute([one, other])
            for found, wanted in zip(outputs, (last, rows, -last), strict=True):
                assert found.flags.c_contiguous, name
                np.testing.assert_array_equal(found, wanted, name)
    rooms = [np.full((4, 2, 3, 4), np.nan, np.float32) for _ in range(3)]
    for found, room, wanted in zip(method.execute([last, rows], out=rooms), rooms, (last, rows, -last), strict=True):
        assert found is room
        np.testing.assert_array_equal(room, wanted)
    expanded = np.broadcast_to(last[:1, :, :, :1], last.shape)
    np.testing.assert_array_equal(method.execute([expanded, rows])[0], expanded)


@pytest.mark.fresh
def test_another_backends_channels_last_program_gives_the_right_numbers(data):
    """Where the stock runtime is right for an input that lies channels last alone."""
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    weight = np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2) / 8
    windows = np.lib.stride_tricks.sliding_window_view(image[0], (2, 2), axis=(1, 2))
    wanted = np.einsum("chwij,ocij->ohw", windows, weight) + np.float32([1, -1, 0.5])[:, None, None]
    path = data / "convolution_xnnpack_channels.pte"
    own, stock = (doors.open_door(kind).load(path).method for kind in ("own", "stock"))
    for name, value in layouts_of(image).items():
        np.testing.assert_allclose(own.execute([value])[0], wanted[None], rtol=1e-5, err_msg=name)
    last = layouts_of(image)["torch, channels last"]
    np.testing.assert_allclose(stock.execute([last])[0].numpy(), wanted[None], rtol=1e-5)


@pytest.mark.fresh
def test_what_an_engine_would_get_is_refused_by_name(data, demo_library):
    door = doors.open_door("own")
    doors.register_demo(demo_library)
    program = door.runtime.load_program(data / "demo_channels.pte")
    with pytest.raises(door.tandem.UnsupportedError, match='input "input0" .* an engine .* contiguous'):
        program.load_method("forward")

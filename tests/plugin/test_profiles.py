from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nonzero_plugin.profiles import (
    NetworkInput,
    ProfileError,
    ShapeRange,
    format_profile,
    parse_polygraphy_shapes,
    parse_profile,
    resolve_profiles,
)

IMAGES = NetworkInput("images", (-1, 3, -1, -1), ("batch", "", "height", "width"))


def test_the_documented_spelling() -> None:
    text = "images=1x3x320x320:4x3x640x640:8x3x1280x1280;mask=1:400:1600;k=2x2"
    profile = parse_profile(text)
    assert profile["images"].opt == (4, 3, 640, 640)
    assert profile["mask"] == ShapeRange((1,), (400,), (1600,))
    assert profile["k"] == ShapeRange((2, 2), (2, 2), (2, 2))
    assert parse_profile(format_profile(profile)) == profile


@given(
    st.dictionaries(
        st.text("abc/._0:-", min_size=1, max_size=8).filter(lambda n: "=" not in n),
        st.lists(st.tuples(*[st.integers(0, 9)] * 3).map(sorted), max_size=4),
        min_size=1,
        max_size=3,
    )
)
def test_profiles_round_trip(drawn: dict[str, list[list[int]]]) -> None:
    profile = {
        name: ShapeRange(*(tuple(d[i] for d in dims) for i in range(3)))
        for name, dims in drawn.items()
        if dims
    }
    if profile:
        assert parse_profile(format_profile(profile)) == profile


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no input"),
        ("images", "is not NAME=MIN:OPT:MAX"),
        ("=1x2", "is not NAME=MIN:OPT:MAX"),
        ("x=1:2", "has 2 shapes; give 1 or 3"),
        ("x=1:2:3:4", "has 4 shapes"),
        ("x=1xa:2x2:3x3", "'1xa' is not a shape"),
        ("x=-1x3", "'-1x3' is not a shape"),
        ("x=3:2:1", "not in the order"),
        ("x=1:2x2:3", "mixes ranks"),
        ("x=1;x=2", "names input 'x' twice"),
    ],
)
def test_misspelled_profiles_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        parse_profile(text)


def test_polygraphy_s_spelling() -> None:
    profile = parse_polygraphy_shapes(
        ["images:[1,3,320,320] input:0:[1,4]"], ["images:[4,3,640,640]"], ["images:[8,3,1280,1280]"]
    )
    assert str(profile["images"]) == "1x3x320x320:4x3x640x640:8x3x1280x1280"
    assert str(profile["input:0"]) == "1x4"
    with pytest.raises(ProfileError, match=r"is not NAME:\[D0,D1"):
        parse_polygraphy_shapes(["images=1x3"], [], [])


def test_defaults_are_said_aloud_and_share_symbols() -> None:
    mask = NetworkInput("mask", (-1, -1), ("height", ""))
    profiles, notes = resolve_profiles([IMAGES, mask], [])
    assert len(profiles) == 1 and len(notes) == 2
    assert all("--profile" in note and "assumed" in note for note in notes)
    images = profiles[0]["images"]
    assert [s[2] for s in profiles[0]["images"]] == [s[0] for s in profiles[0]["mask"]]
    assert images.min[0] == 1 and images.max[0] > 1 and images.opt[1] == 3
    assert all(dim % 32 == 0 for shape in images for dim in shape[2:])


def test_a_symbol_the_user_sized_sizes_the_other_inputs() -> None:
    boxes = NetworkInput("boxes", (-1, 4), ("n", ""))
    scores = NetworkInput("scores", (-1,), ("n",))
    profiles, notes = resolve_profiles([scores, boxes], [parse_profile("boxes=5x4:50x4:500x4")])
    assert str(profiles[0]["scores"]) == "5:50:500" and len(notes) == 1


def test_static_networks_get_a_profile_too() -> None:
    profiles, notes = resolve_profiles([NetworkInput("x", (5, 6))], [])
    assert profiles == [{"x": ShapeRange((5, 6), (5, 6), (5, 6))}] and not notes
    assert resolve_profiles([], []) == ([{}], [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image=1x3x2x2", "has no input 'image'; its inputs are 'images'"),
        ("images=1x3x2", "gives input 'images' rank 3; the network has rank 4"),
        ("images=1x4x2x2", "size 4 to 4 on axis 1; the network fixes it at 3"),
        ("images=1x1x2x2:1x3x2x2:1x3x2x2", "size 1 to 3 on axis 1"),
    ],
)
def test_profiles_that_do_not_fit_the_network(text: str, says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        resolve_profiles([IMAGES], [parse_profile(text)])


def test_a_shape_tensor_needs_values() -> None:
    size = NetworkInput("size", (2,), is_shape_tensor=True)
    with pytest.raises(ProfileError, match=r"'size' decides shapes.*--profile 'size="):
        resolve_profiles([size], [])
    profiles, _ = resolve_profiles([size], [parse_profile("size=1x1:4x4:8x8")])
    assert profiles[0]["size"].max == (8, 8)

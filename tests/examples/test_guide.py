"""The pieces of Python in docs/python.md run as they stand, each in a process of its own."""

import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
PIECES = dict(re.findall(r"^## ([^\n]+)\n+```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))


def test_the_guide_has_pieces():
    assert len(PIECES) == GUIDE.read_text().count("```python") >= 5


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES.keys())
def test_a_piece_of_the_guide_does_what_its_comments_say(piece, policy, example):
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", piece],
        cwd=policy.parent,
        env=example.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for wanted in re.findall(r"^print\(.*\)  # (\d.*|\(.*)$", piece, re.MULTILINE):
        assert wanted in done.stdout.splitlines(), done.stdout


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)[)#]", GUIDE.read_text()))))
def test_what_the_guide_links_to_is_there(link):
    assert (GUIDE.parent / link).exists()

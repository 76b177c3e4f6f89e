"""The guide for authors of adapters: its code is that of the example, and the files that it names exist."""

import re
from pathlib import Path
from textwrap import dedent
from typing import get_args

from switchyard.ports.venue import Capabilities
from switchyard.venue.interface import Meaning

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/connect-your-broker.md"
BLOCK = re.compile(r"^\[[^\]]+\]\((\S+)\):\n\n```(?:python|toml)\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_code_is_in_the_file_that_it_names() -> None:
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) == len(re.findall(r"^```(?:python|toml)$", text, re.MULTILINE)) >= 10
    for target, code in blocks:
        assert has_lines((PAGE.parent / target).read_text(), code), f"{target} does not have:\n{code}"


def has_lines(source: str, block: str) -> bool:
    """Whether the lines of the block follow each other in the source, whatever their common indentation.

    Without empty lines: a formatter puts more of them between functions than between methods.
    """
    lines, wanted = ([line for line in text.splitlines() if line.strip()] for text in (source, block))
    windows = (lines[at : at + len(wanted)] for at in range(len(lines)))
    return any(dedent("\n".join(window)) == "\n".join(wanted) for window in windows)


def test_the_files_that_the_guide_and_the_example_name_exist() -> None:
    for page in (PAGE, ROOT / "examples/venue_plugin/README.md"):
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        assert links
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_guide_explains_every_meaning_of_a_code_and_every_strength() -> None:
    text = PAGE.read_text()
    for meaning in get_args(Meaning):
        assert f"`{meaning}`" in text, meaning
    for field in (
        "dedupe",
        "lookup",
        "lookup_keeps",
        "sequence_proof",
        "sessions",
        "acceptance_window",
        "request_expiry",
        "execution_ids",
        "amend",
        "kinds",
    ):
        assert field in Capabilities.__struct_fields__
        assert f"`{field}`" in text, field

"""The dashboard's scripts that need no browser, in V8: digits of money, messages of a stream, texts that stay texts."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py_mini_racer import MiniRacer

from switchyard.domain.values import plain
from switchyard.entrypoints.web.routes import page_files

# A document that records what it is given; a browser turns a string child into a text node.
DOCUMENT = """
class Made {
  constructor(tag) { this.tag = tag; this.attributes = {}; this.children = []; this.style = {}; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  append(...children) { this.children.push(...children); }
}
const document = { createElement: (tag) => new Made(tag) };
"""


def script(name: str) -> str:
    """A module as a plain script."""
    text = page_files()[name].decode()
    return re.sub(r"^import .*$", "", text, flags=re.MULTILINE).replace("export ", "")


@pytest.fixture(scope="module")
def v8() -> MiniRacer:
    engine = MiniRacer()
    engine.eval(script("text.js") + DOCUMENT + script("dom.js"))
    return engine


def call(engine: MiniRacer, function: str, *arguments: Any) -> Any:
    """Call a function with values that JSON has, and return such a value."""
    given_values = ", ".join(map(json.dumps, arguments))
    return json.loads(str(engine.eval(f"JSON.stringify({function}({given_values}) ?? null)")))


decimals = st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=-(10**25), max_value=10**25)
texts = st.text('a1.5e-+"\\/{}[]:,<> \n\u2028é漢😀', max_size=12)
documents = st.recursive(
    st.none() | st.booleans() | texts | decimals,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def written(value: Any) -> str:
    """JSON with the exact digits of decimals."""
    match value:
        case Decimal():
            return str(value)
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return "{" + ",".join(f"{json.dumps(name)}:{written(each)}" for name, each in value.items()) + "}"
        case _:
            return json.dumps(value)


@given(documents)
def test_every_number_keeps_its_digits_and_every_string_its_characters(v8: MiniRacer, value: Any) -> None:
    sent = written(value)
    assert call(v8, "parseExact", sent) == json.loads(sent, parse_float=str, parse_int=str)


@given(decimals | st.integers(-(10**30), 10**30).map(Decimal))
def test_a_shown_number_has_the_digits_of_the_number(v8: MiniRacer, value: Decimal) -> None:
    parts = call(v8, "numberParts", str(value))  # also with an exponent, such as 1E-8
    shown = "".join(parts["groups"]) + parts["fraction"]
    assert Decimal(shown) == value
    assert "e" not in shown.lower()
    assert all(len(group) == 3 for group in parts["groups"][1:])
    whole = plain(value).removeprefix("-").partition(".")[0]
    assert "".join(parts["groups"]).removeprefix("-") == whole


@pytest.mark.parametrize("text", ["", "1,5", "1e400", "0x10", "Infinity", "<b>1</b>", "NO_QUOTE"])
def test_a_text_that_is_no_number_is_not_taken_for_one(v8: MiniRacer, text: str) -> None:
    assert call(v8, "numberParts", text) is None


@given(st.lists(st.integers(0, 200), max_size=8))
def test_messages_do_not_depend_on_the_portions_in_which_they_arrive(v8: MiniRacer, cuts: list[int]) -> None:
    stream = (
        ': keepalive\n\nid: 7\nevent: ready\ndata: {"a":"x: y"}\n\nevent: token_expired\ndata: {}\n\nid: 8\nevent: cut'
    )
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    portions = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    v8.eval("frames = new Frames()")
    assert [message for portion in portions for message in call(v8, "frames.add.bind(frames)", portion)] == [
        {"id": "7", "event": "ready", "data": '{"a":"x: y"}'},
        {"id": None, "event": "token_expired", "data": "{}"},
    ]


def test_only_declared_members_of_an_answer_reach_the_page(v8: MiniRacer) -> None:
    answer = {
        "orders": [{"qty": "1", "secret": "x", "tags": ["a"]}],
        "metrics": {"sharpe": {"value": "1", "x": "2"}},
        "y": 1,
    }
    paths = ["orders[].qty", "orders[].tags[]", "metrics.*.value", "missing"]
    assert call(v8, "picked", answer, paths) == {
        "orders": [{"qty": "1", "tags": ["a"]}],
        "metrics": {"sharpe": {"value": "1"}},
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-16T10:00:01.5Z", "10:00:01.500"),
        ("2026-11-16T10:00:01.123456Z", "10:00:01.123"),
        ("2026-11-15T23:59:59Z", "2026-11-15 23:59:59"),
        ("<b>now</b>", "<b>now</b>"),
        (None, "–"),
    ],
)
def test_times_have_their_date_unless_it_is_today(v8: MiniRacer, text: str | None, shown: str) -> None:
    assert call(v8, "shortTime", text, "2026-11-16") == shown


def test_every_value_of_a_table_becomes_a_text_or_an_attribute(v8: MiniRacer) -> None:
    v8.eval("""
      function hostileTable(text) {
        const columns = [
          { title: text, opens: true, text: (row) => row },
          { title: text, kind: "number", text: (row) => row },
          { title: text, kind: "long", text: (row) => row },
        ];
        return table(text, columns, [text], { key: (row) => row, select: () => {}, level: (row) => row });
      }
    """)
    hostile = '"><img src=x onerror=alert(1)>'

    def parts(node: Any) -> list[str]:
        """The tags, names of attributes and texts, in the order of the document."""
        if isinstance(node, str):
            return [f"text:{node}"]
        below = [part for child in node["children"] for part in parts(child)]
        return [f"tag:{node['tag']}", *(f"attribute:{name}" for name in node["attributes"]), *below]

    found = parts(call(v8, "hostileTable", hostile))
    assert found.count(f"text:{hostile}") == 7  # caption, three titles, three cells
    assert [part for part in found if hostile in part and not part.startswith("text:")] == []
    assert {part for part in found if part.startswith("attribute:")} <= {
        f"attribute:{name}"
        for name in ("class", "tabindex", "role", "aria-label", "scope", "title", "type", "data-key", "data-level")
    }
